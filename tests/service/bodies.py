"""The bodies of all endpoints, the objects inside them, and the least that is valid."""

from typing import Any, Literal, get_args, get_origin

from service.api.document.api_table import bodies_of, parts_of
from service.app import ROUTES
from service.schema.fields import Body

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
