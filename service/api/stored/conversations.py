"""`/v1/conversations`: lists of items that responses continue, on the same store."""

import time
from typing import Any, Literal

import orjson
from pydantic import Field, model_validator
from starlette.responses import Response
from typing_extensions import TypedDict

from service.api.call import Call
from service.api.responses.body import Metadata
from service.api.responses.history import History, read_referenced, stored_input
from service.api.responses.items import Item
from service.api.routes import get, json_response, post
from service.api.stored.lists import INCLUDED, QUERIES, ItemList, included, item_list, listed
from service.api.stored.requested import Requested
from service.errors.errors import NotStored
from service.schema.fields import Body, Items, optional, unsupported
from service.state.stored import Stored, StoredItem, new_id
from service.state.tables import Tables

PATH = "/v1/conversations/{id}"
MAX_ADDED = 20
"""Items that one request may add, as in OpenAI's API."""
HELLO = [{"role": "user", "content": "Say hello."}]


class CreateBody(Body):
    """The request body of `POST /v1/conversations`."""

    items: Items[Item] | None = optional("The first items.", max_length=MAX_ADDED)
    metadata: Metadata | None = optional("Strings by name, at most 16.", max_length=16)

    @model_validator(mode="before")
    @classmethod
    def _refuse_inputs(cls, body: Any) -> Any:
        """Refuse Mistral's conversations, which have the same path."""
        if isinstance(body, dict) and "inputs" in body:
            words = "inputs belongs to Mistral's conversations, which this server does not have: "
            raise unsupported("inputs", words + "send messages to /v1/chat/completions, or input to /v1/responses")
        return body


class UpdateBody(Body):
    """The request body of `POST /v1/conversations/{id}`."""

    metadata: Metadata | None = Field(max_length=16, description="Strings by name, in place of the old ones.")


class ItemsBody(Body):
    """The request body of `POST /v1/conversations/{id}/items`."""

    items: Items[Item] = Field(min_length=1, max_length=MAX_ADDED, description="The items to add.")


class Conversation(TypedDict):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(TypedDict):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class ConversationItem(TypedDict):
    """An item. It has the fields of its type."""

    id: str
    type: str


@post("/v1/conversations", body=CreateBody, request={"items": HELLO}, answer=Conversation)
async def create(call: Call, body: CreateBody) -> Response:
    """Create a conversation

    The server stores it as it stores responses.
    """
    requested = Requested(call, "conversation")
    conversation: Conversation = {
        "id": new_id("conv"),
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": body.metadata or {},
    }
    items = await _resolved(requested, body.items or [])
    stored = Stored(conversation["id"], orjson.dumps(conversation), items)
    await requested.store.run(Tables.put, requested.owner, stored)
    return _answer(stored.value)


@get(PATH, answer=Conversation)
async def retrieve(call: Call) -> Response:
    """Show a conversation"""
    return _answer((await Requested(call, "conversation").read()).value)


@post(PATH, body=UpdateBody, request={"metadata": {"topic": "wheels"}}, answer=Conversation)
async def update(call: Call, body: UpdateBody) -> Response:
    """Change the metadata of a conversation"""
    requested = Requested(call, "conversation")
    conversation = orjson.loads((await requested.read()).value) | {"metadata": body.metadata or {}}
    value = orjson.dumps(conversation)
    if not await requested.store.run(Tables.update, requested.owner, requested.id, value):
        raise requested.missing
    return _answer(value)


@get(PATH, methods=("DELETE",), answer=DeletedConversation)
async def delete(call: Call) -> Response:
    """Delete a conversation and its items

    Responses that were made in it stay.
    """
    requested = Requested(call, "conversation")
    await requested.delete()
    return json_response(DeletedConversation(id=requested.id, object="conversation.deleted", deleted=True))


@get(f"{PATH}/items", answer=ItemList, queries=QUERIES)
async def list_items(call: Call) -> Response:
    """List the items of a conversation, the last one first"""
    return await Requested(call, "conversation").answer(lambda stored: listed(call, stored.items), included(call))


@post(f"{PATH}/items", body=ItemsBody, request={"items": HELLO}, answer=ItemList)
async def create_items(call: Call, body: ItemsBody) -> Response:
    """Add items to a conversation"""
    requested = Requested(call, "conversation")
    included(call)
    added = await _resolved(requested, body.items)
    if not await requested.store.run(Tables.append, requested.owner, requested.id, added):
        raise requested.missing
    size = sum(item.size for item in added)
    content = await call.state.work.run(lambda: orjson.dumps(item_list(added, False)), size)
    return call.respond(content, computed=True)


@get(f"{PATH}/items/{{item_id}}", answer=ConversationItem, queries={"include": INCLUDED})
async def retrieve_item(call: Call) -> Response:
    """Show an item of a conversation"""
    requested, item_id = Requested(call, "conversation"), call.request.path_params["item_id"]
    found = [item for item in (await requested.read(included(call))).items if item.id == item_id]
    if not found:
        raise NotStored("item", item_id)
    return call.respond(found[0].scored or found[0].value)


@get(f"{PATH}/items/{{item_id}}", methods=("DELETE",), answer=Conversation)
async def delete_item(call: Call) -> Response:
    """Delete an item of a conversation"""
    requested, item_id = Requested(call, "conversation"), call.request.path_params["item_id"]
    stored = await requested.read()
    if not await requested.store.run(Tables.remove_item, requested.owner, requested.id, item_id):
        raise NotStored("item", item_id)
    return _answer(stored.value)


def _answer(value: bytes) -> Response:
    """Return the response with a conversation. Without its items it is small."""
    return Response(value, media_type="application/json")


async def _resolved(requested: Requested, items: list[Any]) -> tuple[StoredItem, ...]:
    """Return the items of a body, with stored ones in place of references."""
    referenced = await read_referenced(requested.call, items, "items")
    history = History(referenced=referenced)
    return await requested.call.on_lane(lambda: stored_input(history.resolved(items)))
