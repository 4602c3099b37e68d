"""The fields in docs/api.md, from the schemas. `python -m service.api.document.api_table` writes them there."""

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from pydantic.fields import FieldInfo

from service.api.document.openapi import BODIES, PARTS
from service.schema.fields import Body

START, END = "<!-- fields: python -m service.api.document.api_table -->", "<!-- end of fields -->"
POWERS = {2**31 - 1: "2^31 - 1", 2**63 - 1: "2^63 - 1", -(2**63): "-2^63"}
LIMITS = {"ge": "{} to", "gt": "above {} to", "le": "{}", "min_length": "length {} to", "max_length": "{}"}
ALONE = {"ge": "{} and more", "gt": "above {}", "le": "up to {}", "max_length": "length up to {}"}


def rendered() -> str:
    """Both tables as Markdown: every field x endpoint, then the fields of the objects inside; all others are a 400."""
    return "\n\n".join((_table(BODIES), "Inside them (a field that is not listed is a 400):", _list(PARTS)))


def document(text: str) -> str:
    """`text` with the tables between their marks as the schemas have them now. Raises ValueError without marks."""
    before, rest = text[: text.index(START)], text[text.index(END) :]
    return f"{before}{START}\n{rendered()}\n{rest}"


def _table(bodies: Mapping[str, type[Body]]) -> str:
    names = dict.fromkeys(chain.from_iterable(map(_names, bodies.values())))
    lines = ["| field | " + " | ".join(bodies) + " | meaning |", "|---" * (len(bodies) + 2) + "|"]
    for name in names:
        cells = " | ".join(_cell(body, name) for body in bodies.values())
        lines.append(f"| `{name}` | {cells} | {_meaning(name, bodies.values())} |")
    return "\n".join(lines)


def _list(parts: Mapping[str, type[Body]]) -> str:
    lines = ["| in | field | | meaning |", "|---" * 4 + "|"]
    for place, body in parts.items():
        lines += [f"| {place} | `{name}` | {_cell(body, name)} | {_meaning(name, [body])} |" for name in _names(body)]
    return "\n".join(lines)


def _names(body: type[Body]) -> Iterable[str]:
    return (*_fields(body), *body.harmless)


def _cell(body: type[Body], name: str) -> str:
    if (field := _fields(body).get(name)) is not None:
        return "required" if field.is_required() else "yes"
    if name in body.harmless:
        values = dict.fromkeys(f"`{json.dumps(value).removesuffix('.0')}`" for value in body.harmless[name])
        return "default only: " + (", ".join(values) or "`null`")
    return "400"


def _meaning(name: str, bodies: Iterable[type[Body]]) -> str:
    """What the field's descriptions say and its limits, each once."""
    fields = [field for body in bodies if (field := _fields(body).get(name)) is not None]
    return " / ".join(dict.fromkeys(filter(None, map(_words, fields))))


def _fields(body: type[Body]) -> dict[str, FieldInfo]:
    """By the names that clients use."""
    return {field.alias or name: field for name, field in body.model_fields.items()}


def _words(field: FieldInfo) -> str:
    found = [
        (kind, POWERS.get(value, f"{value:g}"))
        for item in field.metadata
        for kind in LIMITS
        if (value := getattr(item, kind, None)) is not None
    ]
    words = ALONE if len(found) == 1 else LIMITS
    limits = [words[kind].format(value) for kind, value in found]
    return f"{field.description} ({' '.join(limits)})" if limits else field.description or ""


if __name__ == "__main__":
    API = Path(__file__).parents[3] / "docs" / "api.md"
    API.write_text(document(API.read_text()))
