"""The answer of the Responses API, whole or as numbered events."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from service.api.responses.answers import (
    CustomCall,
    FunctionCall,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    RequestEcho,
    ResponseAnswer,
    ResponseState,
    ResponseUsage,
)
from service.api.responses.schema import ResponsesBody
from service.api.responses.tools import functions_of
from service.errors.errors import ApiError
from service.generation.choice import Delta
from service.generation.finish import FINISHES
from service.generation.served import ServedModel
from service.generation.usage import Timings, Usage
from service.http.sse import Json, TypedEvents
from service.schema.fields import Body
from service.structured.call_reader import CallReader, Piece, pieces_of


def request_echo(body: ResponsesBody, served: ServedModel) -> RequestEcho:
    """The fields of the request that its answer repeats, with defaults in place. Unsupported ones have fixed values."""
    defaults, choice = served.defaults.sampling, body.tool_choice or "auto"
    return {
        "background": False,
        "error": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": body.reasoning.summary if body.reasoning else None,
        },
        "service_tier": "default",
        "store": False,
        "text": {"format": body.format.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": choice.model_dump(by_alias=True, exclude_none=True) if isinstance(choice, Body) else choice,
        "tools": [tool.model_dump() for tool in body.tools or () if functions_of(tool)],
        "top_logprobs": 0,
        "truncation": "disabled",
        "temperature": defaults.get("temperature", 1.0) if body.temperature is None else body.temperature,
        "top_p": defaults.get("top_p", 1.0) if body.top_p is None else body.top_p,
    }


@dataclass(slots=True)
class ResponseShape(TypedEvents):
    """Writes `response` objects, and the events that build one. With a `reader` the text may contain tool calls.

    `custom` are the names of custom tools. `namespaces` are namespace and name of functions in one, by their names.
    """

    model: str
    echo: RequestEcho
    reader: CallReader | None = None
    custom: frozenset[str] = frozenset()
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _sent: int = 0
    _items: list[OutputItem] = field(default_factory=list)  # the complete ones
    _open: OutputItem | None = None  # the item being written, in its first state
    _parts: list[str] = field(default_factory=list)  # its text so far

    def opening(self, index: int, usage: Usage) -> list[Json]:
        started = self._response("in_progress", None)
        return [self._event("created", response=started), self._event("in_progress", response=started)]

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        pieces = pieces_of(self.reader, delta.text, final=delta.finish is not None)
        events = [*self._thought_events(delta.thought)] if delta.thought else []
        events += [event for piece in pieces for event in self._piece_events(piece)]
        if delta.finish is not None:
            if self._open is None or self._only_thought(delta.finish):  # an empty answer is an empty message
                events += self._opening_events(message())
            status = FINISHES[delta.finish].responses
            assert status is not None, "a cancelled response ends with an error, and none has a time limit"
            events += self._closing_events(status)
            events.append(self._event(status, response=self._response(status, usage)))
        return events

    def closing(self, usage: Usage) -> list[Json]:
        return []

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> ResponseAnswer:
        """The response in the last event."""
        response: ResponseState = self.chunks(0, parts[0], usage)[-1]["response"]
        return {**response, "timings": timings}

    def failure(self, error: ApiError) -> Json:
        about = {"code": error.code, "message": error.message, "param": error.param}
        return {"type": "error", "sequence_number": self._sent, **about}

    def _only_thought(self, finish: str) -> bool:
        return finish == "stop" and self._open is not None and self._open["type"] == "reasoning"

    def _thought_events(self, thought: str) -> Iterator[Json]:
        if self._open is None or self._open["type"] != "reasoning":
            yield from self._opening_events(reasoning())
        yield self._item_event("reasoning_text.delta", content_index=0, delta=thought)
        self._parts.append(thought)

    def _piece_events(self, piece: Piece) -> Iterator[Json]:
        if isinstance(piece, str):
            if self._open is None or self._open["type"] != "message":
                yield from self._opening_events(message())
            yield self._item_event("output_text.delta", content_index=0, delta=piece, logprobs=[])
            self._parts.append(piece)
        elif piece.id is not None and piece.name is not None:
            yield from self._opening_events(self._call(piece.id, piece.name))
        elif self._open is not None and self._open["type"] == "custom_tool_call":
            self._parts.append(piece.arguments)  # JSON, whose text is known at its end
        else:
            yield self._item_event("function_call_arguments.delta", delta=piece.arguments)
            self._parts.append(piece.arguments)

    def _call(self, call_id: str, name: str) -> FunctionCall | CustomCall:
        if name in self.custom:
            return custom_call(call_id, name)
        call = function_call(call_id, name)
        if name in self.namespaces:
            call["namespace"], call["name"] = self.namespaces[name]
        return call

    def _opening_events(self, item: OutputItem) -> Iterator[Json]:
        yield from self._closing_events("completed")
        self._open, self._parts = item, []
        yield self._event("output_item.added", output_index=len(self._items), item=item)
        if item["type"] == "message":
            yield self._item_event("content_part.added", content_index=0, part=output_text(""))
        elif item["type"] == "reasoning":
            yield self._item_event("content_part.added", content_index=0, part=reasoning_text(""))

    def _closing_events(self, status: str) -> Iterator[Json]:
        item, written = self._open, "".join(self._parts)
        if item is None:
            return
        if item["type"] == "message":
            part = output_text(written)
            yield self._item_event("output_text.done", content_index=0, text=written, logprobs=[])
            yield self._item_event("content_part.done", content_index=0, part=part)
            item = {**item, "status": status, "content": [part]}
        elif item["type"] == "reasoning":
            thought = reasoning_text(written)
            yield self._item_event("reasoning_text.done", content_index=0, text=written)
            yield self._item_event("content_part.done", content_index=0, part=thought)
            item = {**item, "status": status, "content": [thought]}
        elif item["type"] == "custom_tool_call":
            text = input_of(written)
            if text:
                yield self._item_event("custom_tool_call_input.delta", delta=text)
            yield self._item_event("custom_tool_call_input.done", input=text)
            item = {**item, "status": status, "input": text}
        else:
            yield self._item_event("function_call_arguments.done", name=item["name"], arguments=written)
            item = {**item, "status": status, "arguments": written}
        yield self._event("output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None

    def _item_event(self, kind: str, **data: object) -> Json:
        assert self._open is not None
        return self._event(kind, item_id=self._open["id"], output_index=len(self._items), **data)

    def _event(self, kind: str, **data: object) -> Json:
        event = {"type": f"response.{kind}", "sequence_number": self._sent, **data}
        self._sent += 1
        return event

    def _response(self, status: str, usage: Usage | None) -> ResponseState:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "output": [*self._items],
            "usage": None if usage is None else usage_json(usage),
            **self.echo,
        }


def message() -> OutputMessage:
    return {
        "type": "message",
        "id": f"msg_{uuid.uuid4().hex}",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }


def function_call(call_id: str, name: str) -> FunctionCall:
    return {
        "type": "function_call",
        "id": f"fc_{uuid.uuid4().hex}",
        "status": "in_progress",
        "call_id": call_id,
        "name": name,
        "arguments": "",
    }


def custom_call(call_id: str, name: str) -> CustomCall:
    return {
        "type": "custom_tool_call",
        "id": f"ctc_{uuid.uuid4().hex}",
        "status": "in_progress",
        "call_id": call_id,
        "name": name,
        "input": "",
    }


def input_of(arguments: str) -> str:
    """The text of a custom tool's call. Arguments that were cut short have none."""
    try:
        return str(json.loads(arguments)["input"])
    except (ValueError, KeyError, TypeError):
        return ""


def reasoning() -> ReasoningItem:
    return {
        "type": "reasoning",
        "id": f"rs_{uuid.uuid4().hex}",
        "status": "in_progress",
        "summary": [],
        "content": [],
        "encrypted_content": None,
    }


def reasoning_text(text: str) -> ReasoningText:
    return {"type": "reasoning_text", "text": text}


def output_text(text: str) -> OutputText:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def usage_json(usage: Usage) -> ResponseUsage:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            "image_tokens": usage.images,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
