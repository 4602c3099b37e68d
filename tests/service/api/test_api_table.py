"""The tables of docs/api.md agree with the declared bodies, and the bodies behave as declared."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.api.document.api_table import cell, document, names_of, parts_of, values_of
from service.app import ROUTES
from service.schema.fields import Body, Items, optional
from tests.service.bodies import BODIES, KINDS, least

API = Path(__file__).parents[3] / "docs" / "api.md"


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


def test_the_document_opens_with_what_is_supported() -> None:
    """Every field is in the part that says the truth of it: with an effect, another name, default only, or refused."""
    text = API.read_text()
    opening, refusals = text.split("<!-- refusals: ")
    headings = ("### /v1/completions\n", "### Other names\n", "## What the fields do\n", "## Refusals\n")
    places = [opening.index(heading) for heading in headings]
    assert places == sorted(places)
    for path, body in BODIES.items():
        section = opening[opening.index(f"### {path}\n") :].split("\n### ")[0]
        others = refusals.split(f"**{path}**: ")[1].splitlines()[0]
        for name in dict.fromkeys(name for other in BODIES.values() for name in names_of(other)):
            assert (f"`{name}`" in others) == (cell(body, name) == "400"), (path, name)
            if name in body.synonyms:
                assert f"| `{name}` | `{body.synonyms[name]}` |" in opening
            elif cell(body, name) in ("yes", "required"):
                assert f"`{name}`" in section, (path, name)
            elif name in body.harmless:
                assert f"| `{name}` | {values_of(body, name)} |" in refusals, (path, name)
