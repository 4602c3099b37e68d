"""Heads of requests and trailers without end: the server closes the connection before it has read much."""

from functools import partial

from tests.drill.attacks.protocol import BODY, CHUNKED, POST, bad, good
from tests.drill.row import MIB, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.wire import pour, request

ACCEPTED = 32 * MIB
"""What kernels' buffers, and a server that reads on until its refusal has arrived, may take from a sender."""
POUR_SECONDS = 10.0
CLOSING = POST + CHUNKED + b"connection: close\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)


def flood(head: bytes, part: bytes, n_bytes: int, stage: Stage) -> str:
    """Pour a part again and again after a head."""
    accepted, reply = pour(stage.target.port, head, part, n_bytes, seconds=POUR_SECONDS)
    check(reply.status != 200, "answered with 200")
    check(accepted <= ACCEPTED, f"accepted {accepted // MIB} MiB")
    check(reply.closed, "the connection was left open")
    return f"closed after {accepted // 1024} KiB"


def flooding(fault: str, head: bytes, part: bytes, n_bytes: int = 400 * MIB) -> Row:
    promise = Promise("closed before 32 MiB are sent, no 200", memory=32 * MIB)
    return Row(fault, promise, partial(flood, head, part, n_bytes))


def get(path: bytes = b"/live", *fields: bytes) -> bytes:
    return b"\r\n".join([b"GET %s HTTP/1.1" % path, b"host: localhost", *fields, b"", b""])


FIELDS = [b"x-%d: 1" % n for n in range(96)]
ROWS = (
    flooding("400 MB of headers", POST, b"x-drill: 0123456789\r\n" * 3000),
    flooding("150 MB of headers in fields of 7 KiB", POST, (b"x-drill: " + b"a" * 7000 + b"\r\n") * 9, 150 * MIB),
    flooding("a header value without end", POST + b"x-drill: ", b"a" * 2**16),
    flooding("a header name without end", POST, b"a" * 2**16),
    flooding("a URL without end", b"GET /", b"a" * 2**16),
    flooding("a method without end", b"", b"G" * 2**16),
    flooding("trailers without end", POST + CHUNKED + b"\r\n" + CHUNK + b"0\r\n", b"x-drill: 0123456789\r\n" * 3000),
    flooding("a chunk extension without end", POST + CHUNKED + b"\r\n5;x=", b"a" * 2**16),
    bad("a head of 33 KiB", get(b"/live", *[b"x-%d: " % n + b"a" * 3300 for n in range(10)]), 431),
    bad("101 fields", get(b"/live", *[b"x-%d: 1" % n for n in range(101)]), 431),
    bad("a line of 9 KiB", get(b"/live", b"x-drill: " + b"a" * 9000), 431),
    bad("a URL of 9 KiB", get(b"/live?" + b"a" * 9000), 414),
    good(
        "99 fields, a line and a URL of 7 KiB",
        get(b"/live?" + b"a" * 7000, *FIELDS, b"x-drill: " + b"a" * 7000, b"connection: close"),
    ),
    good("trailers of 1 KiB", CLOSING + CHUNK + b"0\r\nx-a: " + b"a" * 1000 + b"\r\n\r\n"),
    good("a plain request", request(BODY, "/v1/completions", "connection: close")),
)
