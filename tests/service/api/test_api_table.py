"""The tables of docs/api.md agree with the declared bodies, and the bodies behave as declared."""

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

from service.api.document.api_table import bodies_of, cell, document, names_of, parts_of
from service.app import ROUTES
from service.schema.fields import Body, Items, optional

API = Path(__file__).parents[3] / "docs" / "api.md"
BODIES = bodies_of(ROUTES)
KINDS = list(dict.fromkeys((*BODIES.values(), *parts_of(BODIES))))
TEXTS = {"arguments": "{}", "role": "user"}
"""Values for fields that do not accept "a"."""


def least(kind: type[Body]) -> dict[str, Any]:
    """A valid body with nothing but the required fields, and a content where there may be one."""
    return {
        field.alias or name: value_of(name, field.annotation)
        for name, field in kind.model_fields.items()
        if field.is_required() or name == "content"
    }


def value_of(name: str, annotation: Any) -> Any:
    """A value of the annotation, of a union's first member."""
    if name in TEXTS:
        return TEXTS[name]
    if isinstance(annotation, type) and issubclass(annotation, Body):
        return least(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return arguments[0]
    if origin is list:
        return [value_of(name, arguments[0])]
    if origin is dict:
        return {}
    if arguments:
        return value_of(name, arguments[0])
    return {int: 1, bool: True}.get(annotation, "a")


def refusals(kind: type[Body], name: str, value: object) -> str:
    """The error for a body with this value in this field, if any."""
    try:
        kind.model_validate_json(json.dumps(least(kind) | {name: value}))
    except ValidationError as error:
        return " ".join(item["msg"] for item in error.errors())
    return ""


def test_the_document_holds_what_the_bodies_say() -> None:
    text = API.read_text()
    assert text == document(text, ROUTES), "run python -m service.api.document.api_table"


@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_true(kind: type[Body]) -> None:
    """Each name of any body is what its cell says; the object holds no others."""
    for name in dict.fromkeys(name for other in KINDS for name in names_of(other)):
        written = cell(kind, name)
        if written.startswith("default only: "):
            values = [json.loads(text) for text in written.removeprefix("default only: ").strip("`").split("`, `")]
            assert not any(refusals(kind, name, value) for value in (None, *values))
            assert all("is not supported: only" in refusals(kind, name, value) for value in ("else", 7, ["x"]))
        else:
            assert ("unknown field" in refusals(kind, name, "x")) == (written == "400")


def test_every_field_has_a_meaning() -> None:
    for kind in KINDS:
        assert all(field.description for field in kind.model_fields.values()), kind


def test_objects_are_found_wherever_they_are() -> None:
    class Inner(Body):
        text: str = optional("Text.")

    class Middle(Body):
        pairs: Items[Items[Inner]] | None = optional("Lists of lists.")

    class Outer(Body):
        one: Middle | str | None = optional("One.")
        inner: Inner | None = optional("Another.")

    found = parts_of({"/x": Outer})
    assert [(kind, [place.name for place in places]) for kind, places in found.items()] == [
        (Middle, ["one"]),
        (Inner, ["one.pairs[][]", "inner"]),
    ]
