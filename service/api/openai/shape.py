"""Answers as OpenAI's clients expect them: plain dicts, one class an endpoint.

A shape makes the events of a stream (`opening`, `chunks`, `closing`) and the whole answer (`whole`).
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from model.batch import TokenLogprob
from model.tokenizers.base import Tokenizer
from service.generation.choice import Delta, Scored
from service.generation.generation import Usage
from service.http.sse import Framing, Json, PlainEvents
from service.schema.generation import StreamOptions
from service.structured.call_reader import CallReader, gathered, piece_json
from service.structured.call_style import Style

LEAST_LOGPROB = -9999.0
"""What -inf is sent as: JSON has no infinities."""


class Shape(Framing, Protocol):
    """`usage` is that of the request so far."""

    def opening(self, index: int, usage: Usage) -> list[Json]:
        """The events before a choice's first."""
        ...

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]: ...

    def closing(self, usage: Usage) -> list[Json]:
        """The events after the last choice's last."""
        ...

    def whole(self, parts: Sequence[Delta], usage: Usage) -> Json:
        """The answer of a plain request; `parts` has one complete delta a choice."""
        ...


def usage_json(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def chunk_usage(asked: StreamOptions, usage: Usage) -> Json:
    """What the chunks of a stream say of usage: null where a last chunk will, numbers where each is to."""
    if asked.continuous_usage_stats:
        return {"usage": usage_json(usage)}
    return {"usage": None} if asked.include_usage else {}


def prompt_scores(delta: Delta, tokenizer: Tokenizer) -> Json:
    """`prompt_logprobs` as vLLM has it, if asked for: by token id, the first token has none."""
    if delta.prompt_logprobs is None:
        return {}

    def scores(item: TokenLogprob) -> Json:
        ranked = {token: (logprob, rank) for rank, (token, logprob) in enumerate(item.top, 1)}
        return {
            str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": tokenizer.name(token)}
            for token, (logprob, rank) in ({item.token: (item.logprob, item.rank)} | ranked).items()
        }

    return {"prompt_logprobs": [None, *map(scores, delta.prompt_logprobs)]}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST_LOGPROB)


@dataclass(frozen=True, slots=True)
class CompletionShape(PlainEvents):
    """`text_completion` objects. `logprobs`, `token_ids`: whether they were asked for."""

    model: str
    tokenizer: Tokenizer
    fingerprint: str
    logprobs: bool
    stream: StreamOptions
    token_ids: bool = False
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self, index: int, usage: Usage) -> list[Json]:
        return []

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        chunk = self._object([self._choice(index, delta)]) | chunk_usage(self.stream, usage)
        return [chunk if delta.progress is None else chunk | {"prompt_progress": delta.progress}]

    def whole(self, parts: Sequence[Delta], usage: Usage) -> Json:
        choices = [self._choice(index, delta) for index, delta in enumerate(parts)]
        return self._object(choices) | {"usage": usage_json(usage)}

    def closing(self, usage: Usage) -> list[Json]:
        return [self._object([]) | {"usage": usage_json(usage)}] if self.stream.include_usage else []

    def _object(self, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def _choice(self, index: int, delta: Delta) -> Json:
        choice = {
            "index": index,
            "text": delta.text,
            "logprobs": self._scores(delta.scored) if self.logprobs else None,
            "finish_reason": delta.finish,
        }
        if self.token_ids:
            choice |= {"prompt_token_ids": delta.prompt_tokens, "token_ids": delta.tokens}
        return choice | prompt_scores(delta, self.tokenizer)

    def _scores(self, scored: Sequence[Scored]) -> Json:
        return {
            "tokens": [self.tokenizer.name(item.token) for item in scored],
            "token_logprobs": [_finite(item.logprob) for item in scored],
            "top_logprobs": [self._top(item) for item in scored],
            "text_offset": [item.start for item in scored],
        }

    def _top(self, item: Scored) -> dict[str, float | None] | None:
        """The likeliest tokens and the token itself; of two with one name, the likelier."""
        if item.logprob is None:
            return None
        top: dict[str, float | None] = {}
        for token, logprob in (*item.top, (item.token, item.logprob)):
            top.setdefault(self.tokenizer.name(token), _finite(logprob))
        return top


@dataclass(frozen=True, slots=True)
class ChatShape(PlainEvents):
    """`chat.completion` and `chat.completion.chunk` objects. With a `style` texts may hold calls."""

    model: str
    tokenizer: Tokenizer
    fingerprint: str
    logprobs: bool
    stream: StreamOptions
    token_ids: bool = False
    style: Style | None = None
    readers: dict[int, CallReader] = field(default_factory=dict)
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self, index: int, usage: Usage) -> list[Json]:
        return [self._chunk(index, {"role": "assistant", "content": ""}, None, None, usage)]

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        """Content, then the end in a frame of its own with an empty delta, as OpenAI does."""
        pieces, finish = self._pieces(index, delta)
        scores = [self._scores(delta.scored)] + [None] * len(pieces)
        frames = [self._chunk(index, piece, own, None, usage) for piece, own in zip(pieces, scores, strict=False)]
        if delta.progress is not None:
            frames.insert(0, self._chunk(index, {}, None, None, usage) | {"prompt_progress": delta.progress})
        if finish:
            frames.append(self._chunk(index, {}, None, finish, usage))
        if self.token_ids:
            for frame in frames:
                frame["choices"][0]["token_ids"] = ()
            frames[0]["choices"][0]["token_ids"] = delta.tokens
            frames[0]["prompt_token_ids"] = delta.prompt_tokens
        return frames

    def whole(self, parts: Sequence[Delta], usage: Usage) -> Json:
        choices = [
            {
                "index": index,
                **self._message(delta),
                "logprobs": self._scores(delta.scored),
                **({"token_ids": delta.tokens} if self.token_ids else {}),
            }
            for index, delta in enumerate(parts)
        ]
        prompt = prompt_scores(parts[0], self.tokenizer)
        if self.token_ids:
            prompt["prompt_token_ids"] = parts[0].prompt_tokens
        return self._object("chat.completion", choices) | {"usage": usage_json(usage)} | prompt

    def closing(self, usage: Usage) -> list[Json]:
        if not self.stream.include_usage:
            return []
        return [self._object("chat.completion.chunk", []) | {"usage": usage_json(usage)}]

    def _pieces(self, index: int, delta: Delta) -> tuple[list[Json], str | None]:
        """The deltas of a chunk's message, and its finish_reason. What has logprobs or ids has a delta, maybe empty."""
        anything = delta.text or delta.scored or delta.tokens
        if self.style is None:
            return [{"content": delta.text}] if anything else [], delta.finish
        reader = self.readers.setdefault(index, CallReader(self.style))
        pieces = [piece_json(piece) for piece in reader.feed(delta.text, final=delta.finish is not None)]
        return pieces or ([{"content": ""}] if delta.scored or delta.tokens else []), reader.finish(delta.finish)

    def _message(self, delta: Delta) -> Json:
        """A whole message, and its finish_reason."""
        message: Json = {"role": "assistant", "content": delta.text, "refusal": None}
        if self.style is None:
            return {"message": message, "finish_reason": delta.finish}
        reader = CallReader(self.style)
        text, calls = gathered(reader.feed(delta.text, final=True))
        called = {"content": text or None, "tool_calls": calls} if calls else {"content": text}
        return {"message": message | called, "finish_reason": reader.finish(delta.finish)}

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def _chunk(self, index: int, delta: Json, logprobs: Json | None, finish: str | None, usage: Usage) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._object("chat.completion.chunk", [choice]) | chunk_usage(self.stream, usage)

    def _scores(self, scored: Sequence[Scored]) -> Json | None:
        if not self.logprobs:
            return None
        content = [
            self._score(item.token, item.logprob)
            | {"top_logprobs": [self._score(token, logprob) for token, logprob in item.top]}
            for item in scored
        ]
        return {"content": content, "refusal": None}

    def _score(self, token: int, logprob: float | None) -> Json:
        piece = self.tokenizer.piece(token)
        return {
            "token": self.tokenizer.name(token),
            "logprob": _finite(logprob),
            "bytes": list(piece) if piece else None,
        }
