"""The answer of the Responses API, whole or as numbered events."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from random import Random
from typing import Any, cast

from model.tokenizers.base import Tokenizer
from service.api.responses.answer_types import RequestEcho, ResponseAnswer, ResponseError, ResponseState, ResponseUsage
from service.api.responses.body import ResponsesBody
from service.api.responses.items import ID_PREFIXES
from service.api.responses.tools import functions_of
from service.errors.errors import ApiError
from service.generation.choice import LEAST_LOGPROB, Delta, Scored
from service.generation.finish import FINISHES
from service.generation.served import ServedModel
from service.generation.usage import Timings, Usage
from service.http.sse import Json, TypedEvents
from service.schema.fields import Body
from service.schema.tools import AllowedCalls
from service.state.stored import new_id
from service.structured.blocks import AnswerBlock, BlockReader, BlockStep, arguments_of
from service.structured.call_reader import reader_of


@dataclass(slots=True)
class ErrorEvents(TypedEvents):
    """The error of a response whose other events are written elsewhere: `n_sent` so far."""

    n_sent: int = 0

    def failure(self, error: ApiError) -> Json:
        about = {"code": error.code, "message": error.message, "param": error.param}
        return {"type": "error", "sequence_number": self.n_sent, **about}


@dataclass(slots=True)
class ResponseShape(TypedEvents):
    """Writes `response` objects, and the events that build one. `stored`: the response is stored.

    If the request includes log probabilities, the text has those of its tokens, up to the first call.
    """

    body: InitVar[ResponsesBody]
    model: str
    stored: InitVar[bool] = False
    tokenizer: Tokenizer | None = None
    blocks: BlockReader = field(default_factory=BlockReader)
    id: str = field(default_factory=lambda: new_id("resp"))
    created: int = field(default_factory=lambda: int(time.time()))
    echo: RequestEcho = field(init=False)
    custom: frozenset[str] = field(init=False)
    namespaces: Mapping[str, tuple[str, str]] = field(init=False)
    calls: AllowedCalls = field(init=False)
    scored: bool = field(init=False)
    _defaulted: Sequence[str] = field(init=False)  # sampling parameters that the request leaves to the model
    _sent: int = 0
    _items: list[Any] = field(default_factory=list)  # the complete ones
    _open: Json = field(default_factory=dict)  # the item being written, in its first state
    _scores: list[Json] = field(default_factory=list)  # the log probabilities of its tokens so far
    _waiting: deque[Scored] = field(default_factory=deque)  # tokens of which no text was sent
    _n_scored: int = 0
    _n_sent: int = 0  # characters of text

    def __post_init__(self, body: ResponsesBody, stored: bool) -> None:
        """Take what the answer needs of the body: with its items and images it may be large."""
        self.echo = request_echo(body, stored=stored)
        self.custom, self.namespaces = body.custom_names, body.namespaces
        self.calls, self.scored = body.calls, body.n_logprobs is not None
        self._defaulted = [name for name in DEFAULTS if getattr(body, name, None) is None]

    def identify(self, unique: str, created: int) -> None:
        self.id, self.created = f"resp_{unique}", created

    def begin(self, served: ServedModel, name: str) -> None:
        self.model, defaults = name, served.defaults.sampling
        self.echo |= cast(RequestEcho, {name: defaults[name] for name in self._defaulted if name in defaults})
        self.tokenizer = served.tokenizer if self.scored else None
        self.blocks = reader_of(served, self.calls, Random(self.id))

    def queued(self) -> list[Json]:
        """Return the first events of a response in the background. Its opening then has the next one."""
        waiting = self.state("queued")
        return [self._event("created", response=waiting), self._event("queued", response=waiting)]

    def opening(self, index: int, usage: Usage) -> list[Json]:
        started = self.state("in_progress")
        created = [] if self._sent else [self._event("created", response=started)]
        return [*created, self._event("in_progress", response=started)]

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        self._waiting += delta.scored[max(0, usage.reasoning - self._n_scored) :]  # the thought's come first
        self._n_scored += len(delta.scored)
        reason = FINISHES[delta.finish].responses if delta.finish else ""
        status = "incomplete" if reason else "completed"
        events = [event for step in self.blocks.feed(delta) for event in self._events(step, status)]
        if delta.finish is not None:
            thought_only = delta.finish == "stop" and self._items and self._items[-1]["type"] == "reasoning"
            if not self._items or thought_only:  # an empty answer is an empty message
                events += [*self._begin(AnswerBlock("text")), *self._end("", status)]
            events.append(self._event(status, response=self._response(status, usage, reason)))
        return events

    def closing(self, usage: Usage) -> list[Json]:
        return []

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> ResponseAnswer:
        """Return the response in the last event."""
        response: ResponseState = self.chunks(0, parts[0], usage)[-1]["response"]
        return {**response, "timings": timings}

    def state(self, status: str, error: ResponseError | None = None) -> ResponseState:
        """Return the response as far as it is complete."""
        return {**self._response(status, None), "error": error}

    def failed(self, error: ResponseError | None) -> Json:
        """Return the last event of a background response that failed, or without an error was cancelled."""
        kind, status = ("failed", "failed") if error else ("incomplete", "cancelled")
        return self._event(kind, response=self.state(status, error))

    def failure(self, error: ApiError) -> Json:
        return ErrorEvents(self._sent).failure(error)

    def _events(self, step: BlockStep, status: str) -> Iterator[Json]:
        """Yield the events of a step. The last item gets the `status` of the answer."""
        block, text = step.block, step.text
        match step.change, block.kind:
            case "begin", _:
                yield from self._begin(block)
            case "text", "thought":
                yield self._item_event("reasoning_text.delta", content_index=0, delta=text)
            case "text", "text":
                scores = self._scores_of(text)
                self._scores += scores
                yield self._item_event("output_text.delta", content_index=0, delta=text, logprobs=scores)
            case "text", "call" if self._open["type"] == "function_call":
                yield self._item_event("function_call_arguments.delta", delta=text)
            case "end", _:
                yield from self._end(block.text, status if step.last else "completed")

    def _scores_of(self, text: str) -> list[Json]:
        """Return the log probabilities of the tokens that start in the next text."""
        self._n_sent += len(text)
        scores: list[Json] = []
        while self.tokenizer and self._waiting and self._waiting[0].start < self._n_sent:
            scored = self._waiting.popleft()
            top = [token_json(self.tokenizer, *alternative) for alternative in scored.top]
            scores.append(token_json(self.tokenizer, scored.token, scored.logprob) | {"top_logprobs": top})
        return scores

    def _kind_of(self, block: AnswerBlock) -> tuple[str, Json]:
        if block.kind == "thought":
            return "reasoning", {"summary": [], "content": [], "encrypted_content": None}
        if block.kind == "text":
            return "message", {"role": "assistant", "content": []}
        if block.name in self.custom:  # its text is in JSON, and known at its end
            return "custom_tool_call", {"call_id": block.id, "name": block.name, "input": ""}
        if block.name not in self.namespaces:
            return "function_call", {"call_id": block.id, "name": block.name, "arguments": ""}
        namespace, name = self.namespaces[block.name]
        return "function_call", {"call_id": block.id, "name": name, "namespace": namespace, "arguments": ""}

    def _begin(self, block: AnswerBlock) -> Iterator[Json]:
        """Yield the events of a new item. Its id follows from the response's: the same tokens give the same events."""
        kind, own = self._kind_of(block)
        id = f"{ID_PREFIXES[kind]}_{self.id.removeprefix('resp_')}{len(self._items) + 1:02x}"
        self._open, self._scores = {"type": kind, "id": id, "status": "in_progress", **own}, []
        yield self._event("output_item.added", output_index=len(self._items), item=self._open)
        if "content" in self._open:
            yield self._item_event("content_part.added", content_index=0, part=part_of(self._open, ""))

    def _end(self, written: str, status: str) -> Iterator[Json]:
        item = {**self._open, "status": status}
        if "content" in item:
            part = part_of(item, written, self._scores)
            scores: Json = {"logprobs": self._scores} if "logprobs" in part else {}
            yield self._item_event(f"{part['type']}.done", content_index=0, text=written, **scores)
            yield self._item_event("content_part.done", content_index=0, part=part)
            item["content"] = [part]
        elif "input" in item:
            text = item["input"] = _input_of(written)
            if text:
                yield self._item_event("custom_tool_call_input.delta", delta=text)
            yield self._item_event("custom_tool_call_input.done", input=text)
        else:
            item["arguments"] = written
            yield self._item_event("function_call_arguments.done", name=item["name"], arguments=written)
        yield self._event("output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)

    def _item_event(self, kind: str, **data: object) -> Json:
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


DEFAULTS = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "temperature": 1.0, "top_p": 1.0}
"""Sampling parameters that an answer repeats, with the values of OpenAI's API where nobody gives others."""


def request_echo(body: ResponsesBody, *, stored: bool) -> RequestEcho:
    """Return the fields of the request that its answer repeats. Unsupported ones have fixed values."""
    choice = body.tool_choice or "auto"
    return {
        "background": bool(body.background),
        "conversation": None if body.conversation_id is None else {"id": body.conversation_id},
        "error": None,
        "frequency_penalty": DEFAULTS["frequency_penalty"],
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": DEFAULTS["presence_penalty"],
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": body.reasoning.summary if body.reasoning else None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": stored,
        "text": {"format": body.format.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": choice.model_dump(by_alias=True, exclude_none=True) if isinstance(choice, Body) else choice,
        "tools": [tool.model_dump() for tool in body.tools or () if functions_of(tool)],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        "user": body.user,
        "temperature": DEFAULTS["temperature"] if body.temperature is None else body.temperature,
        "top_p": DEFAULTS["top_p"] if body.top_p is None else body.top_p,
    }


def part_of(item: Json, text: str, scores: Sequence[Json] = ()) -> Json:
    """Return the part with the text of a message, or of a thought. `scores` are the message's log probabilities."""
    if item["type"] == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*scores]}


def token_json(tokenizer: Tokenizer, token: int, logprob: float | None) -> Json:
    """Return a token with its log probability."""
    finite = max(logprob or 0.0, LEAST_LOGPROB)
    return {"token": tokenizer.name(token), "logprob": finite, "bytes": [*tokenizer.piece(token)]}


def _input_of(written: str) -> str:
    """Return the text of a custom tool's call. Arguments that were cut have none."""
    arguments = arguments_of(written)
    return str(arguments["input"]) if isinstance(arguments, dict) and "input" in arguments else ""


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
