"""The tables of docs/api.md: what is written is what the schemas say, and what they say is what they do."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.api.document.api_table import document, rendered
from service.api.document.openapi import BODIES, PARTS
from service.schema.fields import Body

API = Path(__file__).parents[3] / "docs" / "api.md"
LEAST = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": []},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": [], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": []},
    "/v1/embeddings": {"input": "a"},
    "/tokenize": {},
    "/detokenize": {"tokens": []},
    "/apply-template": {"messages": []},
    "`messages`": {"role": "user", "content": "a"},
    "a part of a message": {"type": "text", "text": "a"},
    "`stream_options`": {},
    "a message in `input`": {"role": "user", "content": "a"},
    "a part of it": {"type": "input_text", "text": "a"},
    "a `function_call` in `input`": {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    "a `function_call_output` in `input`": {"type": "function_call_output", "call_id": "a", "output": "x"},
    "`tools` of /v1/responses": {"type": "function", "name": "f"},
    "a function as `tool_choice` there": {"type": "function", "name": "f"},
    "`allowed_tools` there": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "`text`": {},
    "`text.format`": {"type": "text"},
    "`messages` of /v1/messages": {"role": "user", "content": "a"},
    "a text block of theirs, and of `system`": {"type": "text", "text": "a"},
    "a `tool_use` block": {"type": "tool_use", "id": "a", "name": "f", "input": {}},
    "a `tool_result` block": {"type": "tool_result", "tool_use_id": "a"},
    "`tools` of /v1/messages": {"name": "f", "input_schema": {}},
    "`tool_choice` of /v1/messages": {"type": "auto"},
    "`metadata` of /v1/messages": {},
    "`output_config`": {},
    "`output_config.format`": {"type": "json_schema", "schema": {}},
    "`tools`": {"type": "function", "function": {"name": "f"}},
    "their `function`": {"name": "f"},
    "`tool_calls`": {"id": "a", "function": {"name": "f", "arguments": "{}"}},
    "a call's `function`": {"name": "f", "arguments": "{}"},
    "`response_format`": {"type": "text"},
    "its `json_schema`": {"name": "a"},
    "`structured_outputs`": {},
}


def cells() -> Iterator[tuple[str, str, str]]:
    """(body, field, cell) of the table of endpoints, and of the list of what is inside them."""
    endpoints, inside = ([line.strip("| ").split(" | ") for line in part.splitlines()] for part in halves())
    for name, *row in endpoints[2:]:
        yield from ((body, name.strip("`"), cell) for body, cell in zip(BODIES, row, strict=False))
    listed = [(body, name.strip("`"), cell.strip()) for body, name, cell, *_ in inside[2:]]
    yield from listed
    for name in {name for _, name, _ in listed}:
        yield from ((body, name, "400") for body in PARTS if (body, name) not in {row[:2] for row in listed})


def halves() -> list[str]:
    return rendered().split("\n\n")[::2]


def refusals(column: str, name: str, value: object) -> str:
    """What a body with this value in this field is told, if anything."""
    kind: type[Body] = (BODIES | PARTS)[column]  # type: ignore[operator]
    try:
        kind.model_validate_json(json.dumps(LEAST[column] | {name: value}))
    except ValidationError as error:
        return " ".join(item["msg"] for item in error.errors())
    return ""


def test_the_document_holds_what_the_schemas_say() -> None:
    text = API.read_text()
    assert text == document(text), "run python -m service.api.document.api_table"


@pytest.mark.parametrize("column", LEAST)
def test_cells_are_true(column: str) -> None:
    found = [(name, cell) for where, name, cell in cells() if where == column]
    assert len(found) > 10
    for name, cell in found:
        if cell.startswith("default only: "):
            values = [json.loads(text) for text in cell.removeprefix("default only: ").strip("`").split("`, `")]
            assert not any(refusals(column, name, value) for value in (None, *values))
            assert all("is not supported: only" in refusals(column, name, value) for value in ("else", 7, ["x"]))
        else:
            assert ("unknown or unsupported field" in refusals(column, name, "x")) == (cell == "400")


def test_every_field_has_a_meaning() -> None:
    for body in (*BODIES.values(), *PARTS.values()):
        assert all(field.description for field in body.model_fields.values())
