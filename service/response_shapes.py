"""Answers as OpenAI's clients expect them: plain dicts, one class an endpoint.

A shape makes the frames of a stream (`opening`, `chunk`, `usage_chunk`) and the whole answer (`whole`).
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from model.batch import TokenLogprob
from model.tokenizers.base import Tokenizer
from service.choice import Delta, Scored
from service.generation import Usage

Json = dict[str, Any]
LEAST_LOGPROB = -9999.0
"""What -inf is sent as: JSON has no infinities."""


class Shape(Protocol):
    def opening(self, index: int) -> Json | None:
        """The frame that opens a choice, if there is one."""
        ...

    def chunks(self, index: int, delta: Delta) -> list[Json]: ...

    def whole(self, parts: Sequence[Delta], usage: Usage) -> Json:
        """The answer of a plain request; `parts` has one complete delta a choice."""
        ...

    def usage_chunk(self, usage: Usage) -> Json:
        """The last frame of a stream with `include_usage`."""
        ...


def usage_json(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def prompt_scores(delta: Delta, tokenizer: Tokenizer) -> Json:
    """`prompt_logprobs` as vLLM has it, if asked for: by token id, the first token has none.

    The rank of a token is known among the alternatives that were asked for only.
    """
    if delta.prompt_logprobs is None:
        return {}

    def scores(item: TokenLogprob) -> Json:
        ranked = {token: (logprob, rank) for rank, (token, logprob) in enumerate(item.top, 1)}
        return {
            str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": tokenizer.name(token)}
            for token, (logprob, rank) in ({item.token: (item.logprob, None)} | ranked).items()
        }

    return {"prompt_logprobs": [None, *map(scores, delta.prompt_logprobs)]}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST_LOGPROB)


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """`text_completion` objects. `logprobs`, `token_ids`: whether they were asked for."""

    model: str
    tokenizer: Tokenizer
    logprobs: bool
    include_usage: bool
    token_ids: bool = False
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self, index: int) -> None:
        return None

    def chunks(self, index: int, delta: Delta) -> list[Json]:
        return [self._object([self._choice(index, delta)]) | ({"usage": None} if self.include_usage else {})]

    def whole(self, parts: Sequence[Delta], usage: Usage) -> Json:
        choices = [self._choice(index, delta) for index, delta in enumerate(parts)]
        return self._object(choices) | {"usage": usage_json(usage)}

    def usage_chunk(self, usage: Usage) -> Json:
        return self._object([]) | {"usage": usage_json(usage)}

    def _object(self, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
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
class ChatShape:
    """`chat.completion` and `chat.completion.chunk` objects."""

    model: str
    tokenizer: Tokenizer
    logprobs: bool
    include_usage: bool
    token_ids: bool = False
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self, index: int) -> Json:
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunks(self, index: int, delta: Delta) -> list[Json]:
        """Content, then the end in a frame of its own with an empty delta, as OpenAI does."""
        frames = []
        if delta.text or delta.scored or delta.tokens:
            frames.append(self._chunk(index, {"content": delta.text}, self._scores(delta.scored), None))
        if delta.finish:
            frames.append(self._chunk(index, {}, None, delta.finish))
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
                "message": {"role": "assistant", "content": delta.text, "refusal": None},
                "logprobs": self._scores(delta.scored),
                "finish_reason": delta.finish,
                **({"token_ids": delta.tokens} if self.token_ids else {}),
            }
            for index, delta in enumerate(parts)
        ]
        prompt = prompt_scores(parts[0], self.tokenizer)
        if self.token_ids:
            prompt["prompt_token_ids"] = parts[0].prompt_tokens
        return self._object("chat.completion", choices) | {"usage": usage_json(usage)} | prompt

    def usage_chunk(self, usage: Usage) -> Json:
        return self._object("chat.completion.chunk", []) | {"usage": usage_json(usage)}

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _chunk(self, index: int, delta: Json, logprobs: Json | None, finish: str | None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = self._object("chat.completion.chunk", [choice])
        return chunk | {"usage": None} if self.include_usage else chunk

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
