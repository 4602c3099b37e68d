"""The fields in docs/api.md, from the routes' bodies. `python -m service.api.document.api_table` writes them there."""

import json
import pkgutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from service.api.routes import Route
from service.schema.fields import Body

ROUTES = "service.app:ROUTES"
"""The name of the routes: this package must not import the application above it."""
START, END = "<!-- fields: python -m service.api.document.api_table -->", "<!-- end of fields -->"
POWERS = {2**31 - 1: "2^31 - 1", 2**63 - 1: "2^63 - 1", -(2**63): "-2^63"}
LIMITS = {"ge": "{} to", "gt": "above {} to", "le": "{}", "min_length": "length {} to", "max_length": "{}"}
ALONE = {"ge": "{} and more", "gt": "above {}", "le": "up to {}", "max_length": "length up to {}"}


class Place(NamedTuple):
    """The place of an object: in the body of `path`, at `name`, such as "messages[].content[]"."""

    path: str
    name: str


def rendered(routes: Sequence[Route]) -> str:
    """Markdown tables: one of all fields by endpoint, then one of the fields of each object inside a body."""
    bodies = bodies_of(routes)
    inside = (f"{heading}:\n\n{_list(part)}" for part, heading in headed(parts_of(bodies)))
    return "\n\n".join(
        (
            _table(bodies),
            "The objects inside these bodies have the following fields. Any other field is a 400.",
            *inside,
        )
    )


def document(text: str, routes: Sequence[Route]) -> str:
    """`text` with the present tables between their marks. Raises ValueError without marks."""
    before, after = text[: text.index(START)], text[text.index(END) :]
    return f"{before}{START}\n{rendered(routes)}\n{after}"


def bodies_of(routes: Sequence[Route]) -> Mapping[str, type[Body]]:
    """The bodies by the paths of their routes."""
    return {route.path: route.body for route in routes if route.body is not None}


def parts_of(bodies: Mapping[str, type[Body]]) -> Mapping[type[Body], list[Place]]:
    """The objects inside the bodies, each with all its places."""
    parts: dict[type[Body], list[Place]] = {}
    for path, body in bodies.items():
        for name, part in _inside(body):
            places = parts.setdefault(part, [])
            if (place := Place(path, name)) not in places:  # two parts of one place may have this part
                places.append(place)
    return parts


def _inside(body: type[Body], before: str = "") -> Iterator[tuple[str, type[Body]]]:
    for name, field in _fields(body).items():
        for suffix, part in _objects(field.annotation):
            yield before + name + suffix, part
            yield from _inside(part, f"{before}{name}{suffix}.")


def _objects(annotation: Any) -> Iterator[tuple[str, type[Body]]]:
    """The bodies that a field may hold; "[]" stands for the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, Body):
        yield "", annotation
    suffix = "[]" if get_origin(annotation) is list else ""
    for argument in get_args(annotation):
        for inner, part in _objects(argument):
            yield suffix + inner, part


def headed(parts: Mapping[type[Body], list[Place]]) -> Iterator[tuple[type[Body], str]]:
    """Each part with its places, and with its type where other parts have the same place."""
    counts = Counter(chain.from_iterable(parts.values()))
    for part, places in parts.items():
        shared = any(counts[place] > 1 for place in places)
        yield part, _where(places) + (f", with type `{_type_of(part)}`" if shared else "")


def _where(places: Sequence[Place]) -> str:
    """The places as text. Names with the same paths are grouped."""
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys(place.name for place in places):
        paths = ", ".join(place.path for place in places if place.name == name)
        names.setdefault(paths, []).append(f"`{name}`")
    return "; ".join(f"{', '.join(same)} of {paths}" for paths, same in names.items())


def _type_of(part: type[Body]) -> str:
    """The only value of the part's field `type`."""
    types = [part.model_fields["type"].annotation, *get_args(part.model_fields["type"].annotation)]
    return next(get_args(kind)[0] for kind in types if get_origin(kind) is Literal)


def _table(bodies: Mapping[str, type[Body]]) -> str:
    names = dict.fromkeys(chain.from_iterable(map(names_of, bodies.values())))
    lines = ["| field | " + " | ".join(bodies) + " | meaning |", "|---" * (len(bodies) + 2) + "|"]
    for name in names:
        cells = " | ".join(cell(body, name) for body in bodies.values())
        lines.append(f"| `{name}` | {cells} | {_meaning(name, bodies.values())} |")
    return "\n".join(lines)


def _list(body: type[Body]) -> str:
    lines = ["| field | | meaning |", "|---" * 3 + "|"]
    lines += [f"| `{name}` | {cell(body, name)} | {_meaning(name, [body])} |" for name in names_of(body)]
    return "\n".join(lines)


def names_of(body: type[Body]) -> Iterable[str]:
    return (*_fields(body), *body.harmless)


def cell(body: type[Body], name: str) -> str:
    """Whether the body accepts the field."""
    if (field := _fields(body).get(name)) is not None:
        return "required" if field.is_required() else "yes"
    if name in body.harmless:
        values = dict.fromkeys(f"`{json.dumps(value).removesuffix('.0')}`" for value in body.harmless[name])
        return "default only: " + (", ".join(values) or "`null`")
    return "400"


def _meaning(name: str, bodies: Iterable[type[Body]]) -> str:
    """The descriptions and limits of the field in all bodies, without repetition."""
    fields = [field for body in bodies if (field := _fields(body).get(name)) is not None]
    return " / ".join(dict.fromkeys(filter(None, map(_words, fields))))


def _fields(body: type[Body]) -> dict[str, FieldInfo]:
    """The fields of a body by the names that clients use."""
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
    API.write_text(document(API.read_text(), pkgutil.resolve_name(ROUTES)))
