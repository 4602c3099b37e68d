"""The request of a stored response, made from the data of its server."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import httpx

from model.errors import OptionError
from service.commands.receipts.again import RESPONSES, reply

REPEATED = (
    *("instructions", "parallel_tool_calls", "previous_response_id", "reasoning", "temperature", "text"),
    *("tool_choice", "tools", "top_p", "truncation"),
)
"""The fields of a response that repeat those of its request and can change a token."""
PROBLEM = "without --request FILE the request is taken from the stored response, which cannot be read"


def response_id(answer: Any) -> str | None:
    """Return the id of a response: a whole one, or that in the last event of its stream. None for another answer."""
    found = answer.get("response", answer)
    id = found.get("id") if isinstance(found, dict) else None
    return id if isinstance(id, str) and id.startswith("resp_") else None


def stored_request(client: httpx.Client, id: str) -> dict[str, Any]:
    """Return the body of the request of a response, with the items before it in its conversation.

    The server has the responses before it: `previous_response_id` stays. Raises OptionError.
    """
    path = f"{RESPONSES}/{quote(id, safe='')}"
    response = reply(client, "GET", path, PROBLEM)
    own = _items(client, f"{path}/input_items")
    earlier: Sequence[Any] = ()
    if response.get("conversation"):
        conversation = _items(client, f"/v1/conversations/{response['conversation']['id']}/items")
        earlier = _before(conversation, {item["id"] for item in (*own, *response["output"])})
    return {name: response.get(name) for name in REPEATED} | {"input": [*earlier, *own]}


def _items(client: httpx.Client, path: str) -> list[Any]:
    """Read all items of a list, the first one first."""
    found: list[Any] = []
    more = True
    while more:
        after = {"after": found[-1]["id"]} if found else {}
        page = reply(client, "GET", path, PROBLEM, params={"limit": 100, "order": "asc", **after})
        found += page["data"]
        more = page["has_more"]
    return found


def _before(conversation: Sequence[Any], ids: set[str]) -> Sequence[Any]:
    """Return the items of a conversation before the first with one of these ids. Raises OptionError without any."""
    for index, item in enumerate(conversation):
        if item["id"] in ids:
            return conversation[:index]
    raise OptionError(f"{PROBLEM}: its conversation does not have its items any more")
