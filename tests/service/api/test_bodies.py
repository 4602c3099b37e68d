"""The bodies behave as they are declared."""

import json

import pytest
from pydantic import ValidationError

from service.schema.fields import Body
from tests.service.bodies import KINDS, fields_of, least, names_of


def refusals(kind: type[Body], name: str, value: object) -> str:
    """The error for a body with this value in this field, if any."""
    try:
        kind.model_validate_json(json.dumps(least(kind) | {name: value}))
    except ValidationError as error:
        return " ".join(item["msg"] for item in error.errors())
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_is_known_harmless_or_refused(kind: type[Body]) -> None:
    """Each name of any body. A harmless field passes with null and its declared values."""
    for name in dict.fromkeys(name for other in KINDS for name in names_of(other)):
        if name in kind.harmless and name not in fields_of(kind):
            assert not any(refusals(kind, name, value) for value in (None, *kind.harmless[name]))
            assert all("is not supported: only" in refusals(kind, name, value) for value in ("else", 7, ["x"]))
        else:
            assert ("unknown field" in refusals(kind, name, "x")) == (name not in names_of(kind))


def test_every_field_has_a_meaning() -> None:
    for kind in KINDS:
        assert all(field.description for field in kind.model_fields.values()), kind
