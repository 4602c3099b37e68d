"""Requests from files in public trace formats.

Azure's LLM inference traces (github.com/Azure/AzurePublicDataset) are CSV: TIMESTAMP,ContextTokens,GeneratedTokens.
Mooncake's (github.com/kvcache-ai/Mooncake) are JSON lines: timestamp in milliseconds, input_length, output_length and
hash_ids, one for each 512 tokens of the prompt. Equal ids are equal tokens after equal tokens. For other sources a line
of JSON may leave out the hash_ids, and may have a "conversation" and a "tenant", both texts.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model.errors import OptionError
from service.commands.simulate.requests import Request

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE = ("timestamp", "input_length", "output_length")
OPTIONAL = ("hash_ids", "conversation", "tenant")
HASH_BLOCK = 512
MOST_ID = 2**30 - 1
"""Greater ids would make token ids of more than 32 bits."""


class BadLine(Exception):
    """A line that is no request."""


def read(path: Path, speed: float = 1.0, count: int | None = None) -> list[Request]:
    """The first `count` requests of a trace by time. The first one arrives at 0; times are divided by `speed`.

    Raises OptionError that names the file, the line, the field and the value.
    """
    requests: list[Request] = []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        parse = _mooncake if lines and lines[0].startswith("{") else _azure
        for request in parse(lines):
            requests.append(request)
    except OSError as error:
        raise OptionError(f"--trace {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"--trace {path} is not UTF-8: {error.reason} at byte {error.start}") from error
    except BadLine as error:
        raise OptionError(f"--trace {path}, {error}") from error
    if not requests:
        raise OptionError(f"--trace {path} has no requests")
    requests.sort(key=lambda request: request.at)
    start = requests[0].at
    return [replace(request, at=(request.at - start) / speed) for request in requests[:count]]


def _azure(lines: list[str]) -> Iterator[Request]:
    found = csv.reader(lines)
    if (header := tuple(next(found, ()))) != AZURE:
        raise BadLine(f"line 1: expected the columns {','.join(AZURE)} or lines of JSON, found {','.join(header)!r}")
    for line, row in enumerate(found, 2):
        where = f"line {line}"
        if len(row) != len(AZURE):
            raise BadLine(f"{where}: expected {len(AZURE)} columns, found {len(row)}")
        values = dict(zip(AZURE, row, strict=True))
        prompt, output = (_digits(values, name, where) for name in AZURE[1:])
        yield Request(_date(values, where), prompt, output)


def _date(values: dict[str, str], where: str) -> float:
    try:
        date = datetime.fromisoformat(values[AZURE[0]])
    except ValueError:
        raise BadLine(f"{where}: {AZURE[0]} must be a date and a time, got {values[AZURE[0]]!r}") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _digits(values: dict[str, str], name: str, where: str) -> int:
    text = values[name]
    return _count(int(text) if text.isdecimal() else text, name, where)


def _mooncake(lines: list[str]) -> Iterator[Request]:
    for line, text in enumerate(lines, 1):
        where = f"line {line}"
        try:
            found = json.loads(text)
        except ValueError as error:
            raise BadLine(f"{where} is not JSON: {error}") from None
        if not isinstance(found, dict) or not set(MOONCAKE) <= found.keys() <= {*MOONCAKE, *OPTIONAL}:
            names = sorted(found) if isinstance(found, dict) else type(found).__name__
            raise BadLine(f"{where} must have {', '.join(MOONCAKE)}, and may have {', '.join(OPTIONAL)}; found {names}")
        yield _request(found, where)


def _request(found: dict[str, Any], where: str) -> Request:
    at, ids = found["timestamp"], found.get("hash_ids", [])
    if type(at) not in (int, float) or not 0 <= at < float("inf"):
        raise BadLine(f"{where}: timestamp must be milliseconds of at least 0, got {at!r}")
    if not isinstance(ids, list) or not all(type(item) is int and 0 <= item <= MOST_ID for item in ids):
        raise BadLine(f"{where}: hash_ids must be a list of integers from 0 to {MOST_ID}, got {ids!r:.80}")
    prompt, output = (_count(found[name], name, where) for name in MOONCAKE[1:])
    if len(ids) > -(-prompt // HASH_BLOCK):
        raise BadLine(f"{where}: hash_ids has {len(ids)} entries of {HASH_BLOCK} tokens for input_length {prompt}")
    texts = {name: _text(found[name], name, where) for name in OPTIONAL[1:] if name in found}
    return Request(at / 1000, prompt, output, tuple(ids), HASH_BLOCK, **texts)


def _count(value: Any, name: str, where: str) -> int:
    if type(value) is not int or value < 1:
        raise BadLine(f"{where}: {name} must be an integer of at least 1, got {value!r}")
    return value


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise BadLine(f"{where}: {name} must be a text, got {value!r}")
    return value
