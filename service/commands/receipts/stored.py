"""The request of a stored response, from the server that has it."""

from typing import Any

import httpx

from model.errors import OptionError
from service.commands.endpoint import refusal

ECHOED = (
    "instructions",
    "max_output_tokens",
    "parallel_tool_calls",
    "previous_response_id",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "truncation",
)
"""The fields of a response that are those of its request, and change its tokens."""


def stored_request(client: httpx.Client, id: str) -> dict[str, Any]:
    """The body that a stored response was made of, without its seed. Raises OptionError."""
    response = _get(client, id, "")
    if response.get("conversation") is not None:
        raise OptionError(f"{id} is of a conversation, which has other items now: nothing can be computed again")
    items: list[Any] = []
    more = True
    while more:
        after = {"after": items[-1]["id"]} if items else {}
        page = _get(client, id, "/input_items", order="asc", limit="100", **after)
        items, more = [*items, *page["data"]], page["has_more"]
    return {name: response[name] for name in ECHOED if response.get(name) is not None} | {"input": items}


def _get(client: httpx.Client, id: str, part: str, **query: str) -> dict[str, Any]:
    try:
        response = client.get(f"/v1/responses/{id}{part}", params=query)
    except httpx.TransportError as error:
        raise OptionError(f"nothing answers at {client.base_url}: {error}") from error
    if not response.is_success:
        raise OptionError(f"the request of {id} is not stored there: {refusal(response)}; give it with --request FILE")
    found: dict[str, Any] = response.json()
    return found
