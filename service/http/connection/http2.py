"""The answer to a client that speaks HTTP/2 unasked, in frames that it can read (RFC 9113)."""

from service.errors.dialects import OPENAI, error_response
from service.errors.errors import ApiError

HTTP_1_1_REQUIRED = 13
FIELDS = b"\x08\x03%d\x0f\x10\x10application/json"
"""`:status` and `content-type`, whose names are 8 and 31 in HPACK's table (RFC 7541)."""


def refusal(error: ApiError) -> bytes:
    """Return the response to the first request, and the end of the connection."""
    response = error_response(error, OPENAI)
    settings, head = _frame(4, 0, 0, b""), _frame(1, 4, 1, FIELDS % response.status_code)  # with END_HEADERS
    data = _frame(0, 1, 1, bytes(response.body))  # with END_STREAM
    goes = (1).to_bytes(4) + HTTP_1_1_REQUIRED.to_bytes(4) + error.message.encode()
    return settings + head + data + _frame(7, 0, 0, goes)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload
