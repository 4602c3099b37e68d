"""The answer of the Responses API, whole or as numbered events."""

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.tokenizers.base import Tokenizer
from service.api.responses.answers import RequestEcho, ResponseAnswer, ResponseError, ResponseState, ResponseUsage
from service.api.responses.items import ID_PREFIXES
from service.errors.errors import ApiError
from service.generation.choice import LEAST_LOGPROB, Delta, Scored
from service.generation.finish import FINISHES
from service.generation.request import Timings, Usage
from service.http.sse import Json, TypedEvents
from service.state.stored import new_id
from service.structured.call_reader import CallReader, Piece, pieces_of


@dataclass(slots=True)
class ErrorEvents(TypedEvents):
    """The error of a response whose other events are written elsewhere: `n_sent` so far."""

    n_sent: int = 0

    def failure(self, error: ApiError) -> Json:
        return _failed(error, self.n_sent)


def _failed(error: ApiError, number: int) -> Json:
    """The event of an error after `number` other events."""
    about = {"code": error.code, "message": error.message, "param": error.param}
    return {"type": "error", "sequence_number": number, **about}


@dataclass(slots=True)
class ResponseShape(TypedEvents):
    """Writes `response` objects, and the events that build one. With a `reader` the text may contain tool calls.

    `custom` are the names of custom tools. `namespaces` are namespace and name of functions in one, by their names.
    With a `tokenizer` the text has the log probabilities of its tokens, up to the first call.
    """

    model: str
    echo: RequestEcho
    reader: CallReader | None = None
    custom: frozenset[str] = frozenset()
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    id: str = field(default_factory=lambda: new_id("resp"))
    created: int = field(default_factory=lambda: int(time.time()))
    _sent: int = 0
    _n_opened: int = 0
    _items: list[Any] = field(default_factory=list)  # the complete ones
    _open: Json | None = None  # the item being written, in its first state
    _parts: list[str] = field(default_factory=list)  # its text so far
    _scores: list[Json] = field(default_factory=list)  # the log probabilities of its tokens so far
    _waiting: deque[Scored] = field(default_factory=deque)  # tokens of which no text was sent
    _calls: bool = False  # whether a call has begun
    _n_scored: int = 0
    _n_sent: int = 0  # characters of text

    def queued(self) -> list[Json]:
        """The first events of a response in the background. Its opening then has the next one."""
        waiting = self.state("queued")
        return [self._event("created", response=waiting), self._event("queued", response=waiting)]

    def opening(self, index: int, usage: Usage) -> list[Json]:
        started = self.state("in_progress")
        created = [] if self._sent else [self._event("created", response=started)]
        return [*created, self._event("in_progress", response=started)]

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        pieces = pieces_of(self.reader, delta.text, final=delta.finish is not None)
        self._waiting += delta.scored[max(0, usage.reasoning - self._n_scored) :]  # the thought's come first
        self._n_scored += len(delta.scored)
        events = [*self._thought_events(delta.thought)] if delta.thought else []
        events += [event for piece in pieces for event in self._piece_events(piece)]
        if delta.finish is not None:
            if self._open is None or self._only_thought(delta.finish):  # an empty answer is an empty message
                events += self._opening_events(self._opened("message", role="assistant", content=[]))
            reason = FINISHES[delta.finish].responses
            status = "incomplete" if reason else "completed"
            events += self._closing_events(status)
            events.append(self._event(status, response=self._response(status, usage, reason)))
        return events

    def closing(self, usage: Usage) -> list[Json]:
        return []

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> ResponseAnswer:
        """The response in the last event."""
        response: ResponseState = self.chunks(0, parts[0], usage)[-1]["response"]
        return {**response, "timings": timings}

    def state(self, status: str, error: ResponseError | None = None) -> ResponseState:
        """The response as far as it is complete."""
        return {**self._response(status, None), "error": error}

    def failed(self, error: ResponseError | None) -> Json:
        """The last event of a response in the background that failed, or without an error was cancelled."""
        kind, status = ("failed", "failed") if error else ("incomplete", "cancelled")
        return self._event(kind, response=self.state(status, error))

    def failure(self, error: ApiError) -> Json:
        return _failed(error, self._sent)

    def _only_thought(self, finish: str) -> bool:
        return finish == "stop" and self._open is not None and self._open["type"] == "reasoning"

    def _thought_events(self, thought: str) -> Iterator[Json]:
        if self._open is None or self._open["type"] != "reasoning":
            yield from self._opening_events(self._opened("reasoning", summary=[], content=[], encrypted_content=None))
        yield self._item_event("reasoning_text.delta", content_index=0, delta=thought)
        self._parts.append(thought)

    def _piece_events(self, piece: Piece) -> Iterator[Json]:
        if isinstance(piece, str):
            if self._open is None or self._open["type"] != "message":
                yield from self._opening_events(self._opened("message", role="assistant", content=[]))
            scores = self._scores_of(piece)
            yield self._item_event("output_text.delta", content_index=0, delta=piece, logprobs=scores)
            self._parts.append(piece)
            self._scores += scores
        elif piece.id is not None and piece.name is not None:
            self._calls = True
            yield from self._opening_events(self._call(piece.id, piece.name))
        else:
            self._parts.append(piece.arguments)
            if self._open is not None and self._open["type"] == "function_call":
                yield self._item_event("function_call_arguments.delta", delta=piece.arguments)

    def _scores_of(self, text: str) -> list[Json]:
        """The log probabilities of the tokens that start in the next text. After a call none are known."""
        self._n_sent += len(text)
        scores: list[Json] = []
        while self.tokenizer and not self._calls and self._waiting and self._waiting[0].start < self._n_sent:
            scored = self._waiting.popleft()
            top = [token_json(self.tokenizer, *alternative) for alternative in scored.top]
            scores.append(token_json(self.tokenizer, scored.token, scored.logprob) | {"top_logprobs": top})
        return scores

    def _call(self, call_id: str, name: str) -> Json:
        if name in self.custom:  # its text is in JSON, and known at its end
            return self._opened("custom_tool_call", call_id=call_id, name=name, input="")
        if name not in self.namespaces:
            return self._opened("function_call", call_id=call_id, name=name, arguments="")
        namespace, name = self.namespaces[name]
        return self._opened("function_call", call_id=call_id, name=name, namespace=namespace, arguments="")

    def _opened(self, kind: str, **own: object) -> Json:
        """An item in its first state. Its id follows from the response's: the same tokens give the same events."""
        self._n_opened += 1
        id = f"{ID_PREFIXES[kind]}_{self.id.removeprefix('resp_')}{self._n_opened:02x}"
        return {"type": kind, "id": id, "status": "in_progress", **own}

    def _opening_events(self, item: Json) -> Iterator[Json]:
        yield from self._closing_events("completed")
        self._open, self._parts, self._scores = item, [], []
        yield self._event("output_item.added", output_index=len(self._items), item=item)
        if "content" in item:
            yield self._item_event("content_part.added", content_index=0, part=part_of(item, ""))

    def _closing_events(self, status: str) -> Iterator[Json]:
        item, written = self._open, "".join(self._parts)
        if item is None:
            return
        item = {**item, "status": status}
        if "content" in item:
            part = part_of(item, written, self._scores)
            scores: Json = {"logprobs": self._scores} if "logprobs" in part else {}
            yield self._item_event(f"{part['type']}.done", content_index=0, text=written, **scores)
            yield self._item_event("content_part.done", content_index=0, part=part)
            item["content"] = [part]
        elif "input" in item:
            text = item["input"] = input_of(written)
            if text:
                yield self._item_event("custom_tool_call_input.delta", delta=text)
            yield self._item_event("custom_tool_call_input.done", input=text)
        else:
            item["arguments"] = written
            yield self._item_event("function_call_arguments.done", name=item["name"], arguments=written)
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

    def _response(self, status: str, usage: Usage | None, reason: str = "") -> ResponseState:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": self.model,
            "output": [*self._items],
            "usage": None if usage is None else usage_json(usage),
            **self.echo,
        }


def part_of(item: Json, text: str, scores: Sequence[Json] = ()) -> Json:
    """The part with the text of a message, or of a thought. `scores` are the log probabilities of the message."""
    if item["type"] == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*scores]}


def token_json(tokenizer: Tokenizer, token: int, logprob: float | None) -> Json:
    """A token with its log probability."""
    finite = max(logprob or 0.0, LEAST_LOGPROB)
    return {"token": tokenizer.name(token), "logprob": finite, "bytes": [*tokenizer.piece(token)]}


def input_of(arguments: str) -> str:
    """The text of a custom tool's call. Arguments that were cut short have none."""
    try:
        return str(json.loads(arguments)["input"])
    except (ValueError, KeyError, TypeError):
        return ""


def usage_json(usage: Usage) -> ResponseUsage:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            "image_tokens": usage.images,
            "audio_tokens": usage.audio,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
