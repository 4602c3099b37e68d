"""Earlier items of a request's conversation, items that it refers to, and the items that are stored of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from pydantic import TypeAdapter

from model.errors import quoted
from service.api.call import Call
from service.api.lanes import written
from service.api.responses.body import CompactBody, InputBody
from service.api.responses.items import (
    ID_PREFIXES,
    AnyItem,
    CallItem,
    CompactionItem,
    CustomCallItem,
    InputImage,
    InputMessage,
    InputPart,
    Item,
    ItemReference,
    OutputItem,
    ReasoningItem,
)
from service.errors.errors import InvalidRequest
from service.schema.conversation import AudioPart
from service.schema.fields import Json
from service.state.stored import PREFIXES, Owner, StoredItem, new_id
from service.state.tables import Tables
from service.structured.blocks import arguments_of

ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[Item])


@dataclass(frozen=True, slots=True)
class History:
    """The JSON of items before those of a request, and of items that the request refers to, by their ids."""

    earlier: Sequence[bytes] = ()
    referenced: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        return sum(map(len, (*self.earlier, *self.referenced.values())))

    def items(self) -> list[AnyItem]:
        """Return the earlier items, without calls that were cut short."""
        return ITEMS.validate_json(b"[%b]" % b",".join(value for value in self.earlier if not _is_cut(value)))

    def resolved(self, items: Sequence[AnyItem] | None) -> list[AnyItem]:
        """Return the items, with those that they refer to in their place. Raises InvalidRequest for a cut call."""
        for id in filter(lambda id: _is_cut(self.referenced[id]), self.referenced):
            raise InvalidRequest(f"item {quoted(id)} is a call that was cut short: it cannot be part of a prompt")
        found = {id: ITEMS.validate_json(b"[%b]" % value)[0] for id, value in self.referenced.items()}
        return [found[item.id] if isinstance(item, ItemReference) else item for item in items or ()]


def _is_cut(value: bytes) -> bool:
    """Return whether a stored item is a call that ended before its arguments did: they are no JSON."""
    if b'"incomplete"' not in value:
        return False
    return arguments_of(orjson.loads(value).get("arguments", "{}")) is None


async def history_of(call: Call, body: InputBody | CompactBody) -> History:
    """Return what the store has for a request. The call holds its bytes as those of a body.

    Raises InvalidRequest for what it does not have, HistoryTooLarge, or Overloaded.
    """
    earlier = await _earlier(call, body)
    referenced = await read_referenced(call, body.input or (), "input")
    history = History([item.value for item in earlier], referenced)
    call.record.body_bytes += history.n_bytes
    call.hold(history.n_bytes)
    return history


async def _earlier(call: Call, body: InputBody | CompactBody) -> Sequence[StoredItem]:
    param, kind, id = "previous_response_id", "response", body.previous_response_id
    if id is None:
        param, kind, id = "conversation", "conversation", body.conversation_id
    if id is None:
        return ()
    owner, limit = Owner.of(call.record), call.state.settings.max_body_bytes
    found = await call.state.store.run(Tables.chain, owner, id, limit) if id.startswith(PREFIXES[kind]) else None
    if found is None:
        raise _missing(call, param, kind, id, f"{param.removesuffix('_id')}_not_found")
    return found


async def read_referenced(call: Call, items: Sequence[AnyItem], field: str) -> Mapping[str, bytes]:
    """Return the stored items that items of this field refer to. Raises InvalidRequest or HistoryTooLarge."""
    ids = {item.id: index for index, item in enumerate(items) if isinstance(item, ItemReference)}
    if not ids:
        return {}
    limit = call.state.settings.max_body_bytes
    found = await call.state.store.run(Tables.referenced, Owner.of(call.record), [*ids], limit)
    for id, index in ids.items():
        if id not in found:
            raise _missing(call, f"{field}[{index}].id", "item", id, "item_not_found")
    return found


def _missing(call: Call, param: str, kind: str, id: str, code: str) -> InvalidRequest:
    if not call.state.store.enabled:
        why = "the server stores nothing (--responses-store off): send the whole conversation as input"
        return InvalidRequest(f"{param} is not supported: {why}", param=param, code="store_off")
    more = ", or one before it is not, or it is not complete" if kind == "response" else ""
    message = f"{param}: no {kind} {quoted(id)} of this key is stored{more}"
    return InvalidRequest(message, param=param, code=code)


def stored_input(items: Sequence[AnyItem]) -> tuple[StoredItem, ...]:
    """Return the items as they are stored: as OpenAI's API lists them, each with an id."""
    return tuple(StoredItem(item["id"], orjson.dumps(item)) for item in map(item_json, items))


def stored_output(items: Sequence[Json]) -> tuple[StoredItem, ...]:
    """Return the items of an answer, as they are stored."""
    return tuple(map(_output, items))


def _output(item: Json) -> StoredItem:
    content = [part | {"logprobs": []} if "logprobs" in part else part for part in item.get("content", ())]
    plain = item | {"content": content} if content else item
    return StoredItem(item["id"], written(plain), output=True, scored=b"" if plain == item else written(item))


def item_json(item: AnyItem) -> Json:
    status: Json = {"status": "completed"}
    match item:
        case InputMessage():
            side = "output" if item.role == "assistant" else "input"
            facts = status | {"role": item.role, "content": _parts(item.content, side)}
        case CallItem():
            named = {"namespace": item.namespace} if item.namespace else {}
            facts = status | {"call_id": item.call_id, "name": item.name, **named}
            facts["arguments"] = json.dumps(item.arguments)
        case CustomCallItem():
            facts = status | {"call_id": item.call_id, "name": item.name, "input": item.input}
        case OutputItem():
            output = item.output if isinstance(item.output, str) else _parts(item.output, "input")
            facts = status | {"call_id": item.call_id, "output": output}
        case ReasoningItem():
            summary = [{"type": part.type, "text": part.text} for part in item.summary or ()]
            content = [{"type": "reasoning_text", "text": part.text} for part in item.content or ()]
            facts = status | {"summary": summary, "content": content, "encrypted_content": None}
        case CompactionItem():
            facts = {"encrypted_content": item.encrypted_content}
        case ItemReference():
            raise AssertionError("references are resolved before")
    kind = item.type or "message"
    return {"type": kind, "id": item.id or new_id(ID_PREFIXES[kind]), **facts}


def _parts(content: str | Sequence[InputPart | InputImage | AudioPart], side: str) -> list[Json]:
    """Return the parts of a message, or of the output of a tool. `side`: "input" or "output"."""
    if isinstance(content, str):
        return [_text_part(f"{side}_text", content)]
    return [*map(_part, content)]


def _part(part: InputPart | InputImage | AudioPart) -> Json:
    if isinstance(part, InputPart):
        return _text_part(part.type, part.text)
    if isinstance(part, InputImage):
        return {"type": "input_image", "image_url": part.image_url, "detail": "auto"}
    named = {"format": part.format} if part.format else {}
    return {"type": "input_audio", "input_audio": {"data": part.data, **named}}


def _text_part(kind: str, text: str) -> Json:
    extra: Json = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text, **extra}
