"""Requests at the edge of HTTP, and those that two servers would read in two ways (smuggling)."""

import json
from functools import partial

from tests.drill.row import Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.wire import Reply, request, talk

BODY = b'{"prompt": "x", "max_tokens": 1}'
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
SECOND = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def one_line_error(reply: Reply) -> bool:
    """Whether a reply has the JSON of an error."""
    try:
        error = json.loads(reply.data.partition(b"\r\n\r\n")[2])["error"]
    except (ValueError, LookupError, TypeError):
        return False
    return set(error) == {"message", "type", "param", "code"}


def refused(data: bytes, status: int, stage: Stage) -> str:
    reply = talk(stage.target.port, data)
    check(reply.statuses == [status], str(reply))
    check(one_line_error(reply), "the body is not the error's JSON")
    check(reply.closed or status == 415, "the connection was left open")
    return str(reply)


def answered(data: bytes, stage: Stage) -> str:
    reply = talk(stage.target.port, data, seconds=5.0)
    check(reply.statuses == [200], str(reply))
    return str(reply)


def old_version(stage: Stage) -> str:
    """HTTP/1.0 knows no chunks: a stream ends with the connection."""
    data = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True}).encode()
    reply = talk(stage.target.port, request(data).replace(b"HTTP/1.1", b"HTTP/1.0", 1), seconds=10.0)
    check(reply.status == 200 and reply.closed, str(reply))
    check(b"transfer-encoding" not in reply.data.lower(), "the answer is chunked")
    check(reply.data.endswith(b"data: [DONE]\n\n"), "the stream has no end")
    return str(reply)


def smuggled(data: bytes, stage: Stage) -> str:
    """Send an ambiguous request that hides a second one."""
    reply = talk(stage.target.port, data, seconds=1.5)
    refused = reply.statuses == [400] and reply.closed
    check(refused or len(reply.statuses) == 1, f"{len(reply.statuses)} answers {reply.statuses}, {reply}")
    check(refused or reply.status == 200 or reply.closed, f"{reply}, and it is read further")
    return str(reply)


def bad(fault: str, data: bytes, status: int = 400) -> Row:
    return Row(fault, Promise(f"{status} with the error's JSON"), partial(refused, data, status))


def good(fault: str, data: bytes) -> Row:
    return Row(fault, Promise("200"), partial(answered, data))


def ambiguous(fault: str, data: bytes) -> Row:
    return Row(f"smuggling: {fault}", Promise("400 and closed, or exactly one answer"), partial(smuggled, data))


ROWS = (
    bad("no Host", b"GET /live HTTP/1.1\r\n\r\n"),
    bad("two Hosts", b"GET /live HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"),
    bad("version HTTP/3.7", b"GET /live HTTP/3.7\r\nhost: localhost\r\n\r\n"),
    bad("no HTTP at all", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    bad(
        "two Authorization fields",
        POST + b"authorization: Bearer a\r\nauthorization: Bearer b\r\n" + LENGTH + b"\r\n" + BODY,
    ),
    bad("an unknown Content-Encoding", POST + b"content-encoding: drill\r\n" + LENGTH + b"\r\n" + BODY, 415),
    bad("a length that is no number", POST + b"content-length: ten\r\n\r\n" + BODY),
    bad("a negative length", POST + b"content-length: -1\r\n\r\n" + BODY),
    bad("a chunk size that is no number", POST + CHUNKED + b"\r\nxyz\r\n" + BODY),
    Row("a stream over HTTP/1.0", Promise("it is not chunked, and whole"), old_version),
    good("a byte-order mark before the JSON", request(b"\xef\xbb\xbf" + BODY)),
    ambiguous("CL + TE", POST + LENGTH + CHUNKED + b"\r\n" + b"0\r\n\r\n" + SECOND),
    ambiguous("TE + CL", POST + CHUNKED + b"content-length: 4\r\n\r\n" + CHUNKS + SECOND[:-2]),
    ambiguous("TE + TE", POST + CHUNKED + b"transfer-encoding: identity\r\n\r\n" + CHUNKS),
    ambiguous("TE with a false name", POST + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS + SECOND[:-2]),
    ambiguous("CL + CL", POST + LENGTH + b"content-length: 0\r\n\r\n" + BODY),
    ambiguous("CL with a list", POST + b"content-length: %d, 0\r\n\r\n" % len(BODY) + BODY),
    ambiguous("CL with a plus sign", POST + b"content-length: +%d\r\n\r\n" % len(BODY) + BODY),
    ambiguous("bare LF", POST.replace(b"\r\n", b"\n") + LENGTH.replace(b"\r\n", b"\n") + b"\n" + BODY),
    ambiguous("bare CR in a value", POST + b"x-a: 1\rx-b: 2\r\n" + LENGTH + b"\r\n" + BODY),
    ambiguous("folded line", POST + b"x-a: 1\r\n transfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + BODY),
    ambiguous("space before the colon", POST + b"transfer-encoding : chunked\r\n" + LENGTH + b"\r\n" + BODY),
    ambiguous("NUL in a value", POST + b"x-a: 1\x002\r\n" + LENGTH + b"\r\n" + BODY),
    ambiguous("chunk size overflow", POST + CHUNKED + b"\r\n" + b"1" + b"0" * 16 + b"\r\n" + BODY + SECOND),
    ambiguous("chunk size with 0x", POST + CHUNKED + b"\r\n0x20\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ambiguous("chunk without its CRLF", POST + CHUNKED + b"\r\n%x\r\n%sXX0\r\n\r\n" % (len(BODY), BODY)),
)
