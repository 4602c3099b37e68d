"""The bodies of all endpoints, the objects inside them, and the least that is valid."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from service.app import ROUTES
from service.schema.fields import Body


def fields_of(body: type[Body]) -> dict[str, FieldInfo]:
    """The fields of a body by the names that clients use."""
    return {field.alias or name: field for name, field in body.model_fields.items()}


def names_of(body: type[Body]) -> tuple[str, ...]:
    """The names of fields that a body accepts."""
    return (*fields_of(body), *body.harmless)


def inside(annotation: Any) -> Iterator[type[Body]]:
    """The bodies that a field of this annotation may hold, and those inside them."""
    if isinstance(annotation, type) and issubclass(annotation, Body):
        yield annotation
        for field in annotation.model_fields.values():
            yield from inside(field.annotation)
    for argument in get_args(annotation):
        yield from inside(argument)


BODIES = {route.path: route.body for route in ROUTES if route.body is not None}
KINDS = list(dict.fromkeys(kind for body in BODIES.values() for kind in inside(body)))
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
