"""The answer to a client that speaks HTTP/2 unasked, in frames that it can read (RFC 9113)."""

from service.errors.dialects import OPENAI, error_response
from service.errors.errors import ApiError

DATA, HEADERS, SETTINGS, GOAWAY = 0, 1, 4, 7
END_STREAM, END_HEADERS = 1, 4
FIRST = (1).to_bytes(4)
"""The client's first stream."""
HTTP_1_1_REQUIRED = (13).to_bytes(4)
FIELDS = b"\x08\x03%d\x0f\x10\x10application/json"
"""`:status` and `content-type`, whose names are 8 and 31 in HPACK's table (RFC 7541)."""


def refusal(error: ApiError, own_fields: object) -> bytes:
    """The response to the first request, and the end of the connection."""
    response = error_response(error, OPENAI)
    return b"".join(
        (
            _frame(SETTINGS, 0, bytes(4), b""),
            _frame(HEADERS, END_HEADERS, FIRST, FIELDS % response.status_code),
            _frame(DATA, END_STREAM, FIRST, bytes(response.body)),
            _frame(GOAWAY, 0, bytes(4), FIRST + HTTP_1_1_REQUIRED + error.message.encode()),
        )
    )


def _frame(kind: int, flags: int, stream: bytes, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream + payload
