"""The lines of a batch, good and bad."""

import json
from pathlib import Path
from typing import Any

import pytest

from model.errors import OptionError
from service.commands.batch.lines import Refusal, Request, count, key_of, parse, read

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi"}}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_a_good_line() -> None:
    assert parse(3, json.dumps(GOOD).encode()) == Request(3, "a", "/v1/completions", b'{"prompt":"hi"}')


@pytest.mark.parametrize(
    ("line", "custom_id", "message"),
    [
        ("{", None, "line 7 is not JSON: "),
        ("[1, 2]", None, "line 7 must be an object with custom_id, method, url, body, got [1, 2]"),
        ("null", None, "line 7 must be an object with custom_id, method, url, body, got null"),
        ('"x"', None, 'line 7 must be an object with custom_id, method, url, body, got "x"'),
        (GOOD | {"custom_id": 4}, None, "line 7: custom_id must be a string that is not empty, got 4"),
        (GOOD | {"custom_id": ""}, "", 'line 7: custom_id must be a string that is not empty, got ""'),
        (GOOD | {"method": "GET"}, "a", 'line 7: method must be "POST", got "GET"'),
        (GOOD | {"url": "/v1/models"}, "a", "line 7: url must be one of /v1/chat/completions, "),
        (GOOD | {"body": None}, "a", "line 7: body must be an object, got null"),
        (GOOD | {"body": {"stream": True}}, "a", "line 7: body.stream must be false in a batch, got true"),
        (GOOD | {"priority": 1}, "a", "line 7: priority is not a field of a batch line; the fields are custom_id, "),
    ],
)
def test_a_bad_line_says_its_number_the_field_and_the_value(line: Any, custom_id: str | None, message: str) -> None:
    found = parse(7, (line if isinstance(line, str) else json.dumps(line)).encode())
    assert isinstance(found, Refusal)
    assert (found.line, found.custom_id) == (7, custom_id)
    assert found.message.startswith(message)


def test_empty_lines_count_but_need_no_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", "\ufeff" + json.dumps(GOOD), "", "  ", GOOD | {"custom_id": "b"})
    assert [(line.line, line.custom_id) for line in read(path)] == [(1, "a"), (4, "b")]
    assert count(path) == 2


def test_an_id_that_is_there_twice_names_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", GOOD | {"custom_id": "b"}, GOOD, "{", "{", GOOD)
    with pytest.raises(OptionError, match=r'in.jsonl line 5: custom_id "a" is also in line 2; each line needs an id'):
        count(path)


@pytest.mark.parametrize(("content", "message"), [("", "has no line"), (None, "cannot be read: No such file")])
def test_a_file_without_requests(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(OptionError, match=message):
        count(tmp_path / "in.jsonl")


def test_a_line_without_an_id_is_named_by_its_number() -> None:
    assert key_of(7, None) == key_of(7, None) != key_of(8, None)
    assert key_of(7, "a") == key_of(8, "a") != key_of(7, "line 7")
    assert key_of(None, "line 7") != key_of(7, None)
