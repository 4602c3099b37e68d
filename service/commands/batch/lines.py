"""The lines of a batch: requests as OpenAI's batch format writes them, checked one by one."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from model.errors import OptionError, quoted

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/fim/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
)
FIELDS = ("custom_id", "method", "url", "body")
MAX_LINE = 64 * 2**20
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the batch, in this line of the file. `body` is JSON; `receipt` says whether it is for receipts."""

    line: int
    custom_id: str
    url: str
    body: bytes
    receipt: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line that is no request, and why."""

    line: int
    custom_id: str | None
    message: str


Line = Request | Refusal


def key_of(line: int | None, custom_id: str | None) -> bytes:
    """Return 16 bytes that name a line of the batch: by its id, or by its number if it has none."""
    name = f"line {line}" if custom_id is None else f"id {custom_id}"
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()


def read(path: Path) -> Iterator[Line]:
    """Yield the lines of the file in their order, without empty ones. Raises OptionError for an unreadable file."""
    for number, text in raw_lines(path):
        yield parse(number, text)


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and text of each line that is not empty. Raises OptionError."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
                if len(line) == MAX_LINE:
                    raise OptionError(f"{path} line {number} is longer than {MAX_LINE} bytes; is it a file of lines?")
                if text := line.removeprefix(BOM if number == 1 else b"").strip():
                    yield number, text
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error


def parse(number: int, text: bytes) -> Line:
    """Return the request in a line, or what is wrong with it."""
    try:
        fields = orjson.loads(text)
    except ValueError as error:
        reason = "it is not UTF-8" if "UTF-8" in str(error) else error
        return Refusal(number, None, f"line {number} is not JSON: {reason}")
    if not isinstance(fields, dict):
        return Refusal(number, None, f"line {number} must be an object with {', '.join(FIELDS)}, got {quoted(fields)}")
    custom_id = fields.get("custom_id")
    if fault := _fault(fields):
        return Refusal(number, custom_id if isinstance(custom_id, str) else None, f"line {number}: {fault}")
    body = fields["body"]
    return Request(number, fields["custom_id"], fields["url"], orjson.dumps(body), bool(body.get("receipt")))


def _fault(fields: dict[str, Any]) -> str:
    """Return what is wrong with the fields of a line; empty if nothing is."""
    custom_id, method, url, body = (fields.get(name) for name in FIELDS)
    if not isinstance(custom_id, str) or not custom_id:
        return f"custom_id must be a string that is not empty, got {quoted(custom_id)}"
    if unknown := fields.keys() - set(FIELDS):
        return f"{min(unknown)} is not a field of a batch line; the fields are {', '.join(FIELDS)}"
    if method != "POST":
        return f'method must be "POST", got {quoted(method)}'
    if url not in ENDPOINTS:
        return f"url must be one of {', '.join(ENDPOINTS)}, got {quoted(url)}"
    if not isinstance(body, dict):
        return f"body must be an object, got {quoted(body)}"
    if body.get("stream"):
        return f"body.stream must be false in a batch, got {quoted(body['stream'])}"
    return ""


def count(path: Path) -> int:
    """Count the lines to answer. Raises OptionError for an unreadable file, or if two lines have one id."""
    seen, n_lines = set[bytes](), 0
    for line in read(path):
        n_lines += 1
        if line.custom_id is None:
            continue
        if (key := key_of(None, line.custom_id)) in seen:
            first = next(one.line for one in read(path) if one.custom_id == line.custom_id)
            raise OptionError(
                f"{path} line {line.line}: custom_id {quoted(line.custom_id)} is also in line {first}; "
                "each line needs an id of its own"
            )
        seen.add(key)
    if not n_lines:
        raise OptionError(f"{path} has no line; write one request per line")
    return n_lines
