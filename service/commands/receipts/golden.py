"""The file of `noria check`: requests in OpenAI's batch format, each with the receipts of its answer and their content.

A line keeps no signature: it is signed by a key that lives as long as the command. Edit a text or a token to try it:
the hash of the text is computed when a line is read.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson

from model.errors import OptionError
from service.commands.batch.lines import Refusal, Request, parse, raw_lines
from service.commands.receipts.again import ENDPOINTS, LEFT_OUT, answers, body_for, check_body
from service.receipts.read import found_in
from service.receipts.receipt import Receipt, digest


class Line(NamedTuple):
    """A request with the receipts of its choices, which have their content."""

    custom_id: str
    url: str
    body: dict[str, Any]
    receipts: list[Receipt]


def read(path: Path) -> list[Line]:
    """All lines of a file. Raises OptionError."""
    return _some(path, [_line(path, number, text) for number, text in raw_lines(path)])


def requests(path: Path) -> list[Request]:
    """The requests to record. Raises OptionError for a line that cannot be one."""
    return _some(path, [_request(path, parse(number, text)) for number, text in raw_lines(path)])


def recorded(client: httpx.Client, request: Request) -> Line:
    """A request with its answer, its seed and its number of tokens. Raises OptionError."""
    given = {name: value for name, value in orjson.loads(request.body).items() if name not in LEFT_OUT}
    try:
        found = answers(client, request.url, given)
    except OptionError as error:
        raise OptionError(f"{request.custom_id}: {error}") from error
    return Line(request.custom_id, request.url, body_for(found[0], given), found)


def write(path: Path, lines: Iterable[Line]) -> None:
    """Write a file in one piece: a command that fails leaves the old one. Raises OptionError."""
    content = b"".join(orjson.dumps(_plain(line), option=orjson.OPT_APPEND_NEWLINE) for line in lines)
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}") from error


def _plain(line: Line) -> dict[str, Any]:
    receipts = [{**one, "content": {**one["content"], "body": ""}, "key": "", "signature": ""} for one in line.receipts]
    return {"custom_id": line.custom_id, "method": "POST", "url": line.url, "body": line.body, "receipts": receipts}


def _line(path: Path, number: int, text: bytes) -> Line:
    place = f"{path} line {number}"
    try:
        fields = orjson.loads(text)
        kept = {"receipts": fields.pop("receipts")}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OptionError(f"{place} is no request with receipts; noria check --record writes such lines") from None
    request, receipts = _request(path, parse(number, orjson.dumps(fields))), found_in(kept, place)
    if any("content" not in one or one["endpoint"] != request.url for one in receipts):
        raise OptionError(f"{place} has a receipt without content or of another url; noria check --record writes it")
    for one in receipts:
        one["text"] = digest(one["content"]["text"].encode())
    return Line(request.custom_id, request.url, orjson.loads(request.body), receipts)


def _request(path: Path, line: Request | Refusal) -> Request:
    if isinstance(line, Refusal):
        raise OptionError(f"{path} {line.message}")
    if line.url not in ENDPOINTS:
        raise OptionError(f"{path} line {line.line}: {line.url} has no receipts; those are {', '.join(ENDPOINTS)}")
    try:
        check_body(orjson.loads(line.body))
    except OptionError as error:
        raise OptionError(f"{path} line {line.line}: {error}") from None
    return line


def _some(path: Path, lines: list[Any]) -> list[Any]:
    if not lines:
        raise OptionError(f"{path} has no line; write one request per line")
    return lines
