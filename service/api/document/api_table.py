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
MARKS = "<!-- {0}: python -m service.api.document.api_table -->", "<!-- end of {0} -->"
"""Before and after a generated part."""
POWERS = {2**31 - 1: "2^31 - 1", 2**63 - 1: "2^63 - 1", -(2**63): "-2^63"}
LIMITS = {"ge": "{} to", "gt": "above {} to", "le": "{}", "min_length": "length {} to", "max_length": "{}"}
ALONE = {"ge": "{} and more", "gt": "above {}", "le": "up to {}", "max_length": "length up to {}"}


class Place(NamedTuple):
    """The place of an object: in the body of `path`, at `name`, such as "messages[].content[]"."""

    path: str
    name: str


def document(text: str, routes: Sequence[Route]) -> str:
    """`text` with the present tables between their marks. Raises ValueError without marks."""
    bodies = bodies_of(routes)
    for part, content in (("fields", supported(bodies)), ("refusals", refused(bodies))):
        start, end = (mark.format(part) for mark in MARKS)
        before, after = text[: text.index(start)], text[text.index(end) :]
        text = f"{before}{start}\n{content}\n{after}"
    return text


def supported(bodies: Mapping[str, type[Body]]) -> str:
    """The fields with an effect: of each endpoint, of each object inside its body, and the other names of fields."""
    parts = [(heading, part) for part, heading in headed(parts_of(bodies)) if _fields(part)]
    return "\n\n".join(
        (
            *_endpoints(bodies),
            "### Objects inside the bodies",
            *(f"{heading}:\n\n{_table(_own(part), part)}" for heading, part in parts),
            "### Other names",
            "Other servers have these names for the same fields. A request may send both names with the same value.",
            _other_names(bodies),
        )
    )


def refused(bodies: Mapping[str, type[Body]]) -> str:
    """The fields that pass with some values only, then those that one endpoint refuses and another has."""
    return "\n\n".join(
        (
            "### Default only",
            "These fields of OpenAI's API and of other servers have no effect. They pass while they are `null` or hold "
            "a value that describes what the server does anyway.",
            _default_only(bodies),
            "### Refused",
            "Every other field is a 400. Of the fields that some endpoint has, an endpoint refuses:",
            *_refusals(bodies),
        )
    )


def _endpoints(bodies: Mapping[str, type[Body]]) -> Iterator[str]:
    """A heading, a table, and a line of fields that an endpoint before has described, for each endpoint."""
    described: dict[tuple[str, str], str] = {}  # name and meaning -> the endpoint that has it first
    for path, body in bodies.items():
        before: dict[str, list[str]] = {}
        for name in _own(body):
            if (other := described.setdefault((name, row(body, name)), path)) != path:
                before.setdefault(other, []).append(f"`{name}`")
        known = {name.strip("`") for names in before.values() for name in names}
        yield f"### {path}"
        if names := [name for name in _own(body) if name not in known]:
            yield _table(names, body)
        yield from (f"As in {other}: {', '.join(names)}." for other, names in before.items())


def _own(body: type[Body]) -> list[str]:
    """The names of the fields with an effect, without other names of fields. The required ones come first."""
    fields = sorted(_fields(body).items(), key=lambda item: not item[1].is_required())
    return [name for name, _ in fields if name not in body.synonyms]


def _table(names: Iterable[str], body: type[Body]) -> str:
    return "\n".join(["| field | meaning |", "|---" * 2 + "|", *(row(body, name) for name in names)])


def row(body: type[Body], name: str) -> str:
    field = _fields(body)[name]
    needed = "Required. " if field.is_required() else ""
    return f"| `{name}` | {needed}{_words(field)} |"


def _other_names(bodies: Mapping[str, type[Body]]) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for path, body in bodies.items():
        for other, name in body.synonyms.items():
            found.setdefault((other, name), []).append(path)
    lines = [f"| `{other}` | `{name}` | {', '.join(paths)} |" for (other, name), paths in found.items()]
    return "\n".join(["| name | field | endpoints |", "|---" * 3 + "|", *lines])


def _default_only(bodies: Mapping[str, type[Body]]) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for path, body in bodies.items():
        for name in body.harmless:
            found.setdefault((name, values_of(body, name)), []).append(path)
    for part, places in parts_of(bodies).items():
        for name in part.harmless:
            for place in dict.fromkeys(place.name for place in places):
                paths = [other.path for other in places if other.name == place]
                found.setdefault((f"{place}.{name}", values_of(part, name)), []).extend(paths)
    lines = [f"| `{name}` | {values} | {', '.join(dict.fromkeys(paths))} |" for (name, values), paths in found.items()]
    return "\n".join(["| field | values | endpoints |", "|---" * 3 + "|", *lines])


def _refusals(bodies: Mapping[str, type[Body]]) -> Iterator[str]:
    known = dict.fromkeys(chain.from_iterable(map(names_of, bodies.values())))
    for path, body in bodies.items():
        names = [f"`{name}`" for name in known if name not in names_of(body)]
        yield f"**{path}**: {', '.join(names)}."


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


def names_of(body: type[Body]) -> Iterable[str]:
    return (*_fields(body), *body.harmless)


def cell(body: type[Body], name: str) -> str:
    """Whether the body accepts the field."""
    if (field := _fields(body).get(name)) is not None:
        return "required" if field.is_required() else "yes"
    return f"default only: {values_of(body, name)}" if name in body.harmless else "400"


def values_of(body: type[Body], name: str) -> str:
    """The values with which a field without effect passes."""
    values = dict.fromkeys(f"`{json.dumps(value).removesuffix('.0')}`" for value in body.harmless[name])
    return ", ".join(values) or "`null`"


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
