"""Lists of items, a page at a time."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import orjson
from typing_extensions import TypedDict

from model.errors import quoted
from service.api.call import Call
from service.api.queries import choice, number
from service.api.responses.body import Included
from service.errors.errors import InvalidRequest
from service.errors.wording import either
from service.state.stored import StoredItem

INCLUDED: tuple[str, ...] = get_args(Included)
QUERIES = {"limit": (), "order": ("asc", "desc"), "after": (), "include": INCLUDED}
"""The parameters of a list."""


class ItemList(TypedDict):
    """Some of the items of a response or of a conversation. `first_id` and `last_id` are empty without any."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


def listed(call: Call, items: Sequence[StoredItem]) -> ItemList:
    """Return the items that the query of a request selects. Raises InvalidRequest."""
    limit = number(call, "limit", 20, least=1, most=100)
    ordered = [*items] if choice(call, "order", QUERIES["order"], "desc") == "asc" else [*items][::-1]
    after = call.request.query_params.get("after")
    if after is not None:
        position = next((at for at, item in enumerate(ordered) if item.id == after), None)
        if position is None:
            raise InvalidRequest(f"after: no item {quoted(after)} is in the list", param="after")
        ordered = ordered[position + 1 :]
    return item_list(ordered[:limit], len(ordered) > limit)


def item_list(items: Sequence[StoredItem], has_more: bool) -> ItemList:
    first, last = (items[0].id, items[-1].id) if items else ("", "")
    return {"object": "list", "data": json_of(items), "first_id": first, "last_id": last, "has_more": has_more}


def included(call: Call) -> list[str]:
    """Return the values of `include`, which may be repeated, also with brackets. Raises InvalidRequest."""
    values = [value for name in ("include", "include[]") for value in call.request.query_params.getlist(name)]
    if (wrong := next((value for value in values if value not in INCLUDED), None)) is not None:
        raise InvalidRequest(f"include must be {either(INCLUDED)}, got {quoted(wrong)}", param="include")
    return values


def json_of(items: Sequence[StoredItem]) -> list[Any]:
    """Return the JSON of items as it is stored: an item may have 32 MiB, and to parse it would take seconds."""
    return [orjson.Fragment(item.scored or item.value) for item in items]
