"""The answers of completions and chat, as plain dicts: the events of a stream, or the whole answer."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from random import Random
from typing import ClassVar, cast

from model.batch import TokenLogprob
from model.tokenizers.base import Tokenizer
from service.api.openai.answer_types import (
    AnswerHead,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenUsage,
)
from service.generation.choice import LEAST_LOGPROB, Delta, Scored
from service.generation.served import ServedModel
from service.generation.usage import Timings, Usage
from service.http.sse import Json, PlainEvents
from service.schema.generation import GenerationBody, StreamOptions
from service.structured.blocks import BlockReader, BlockStep
from service.structured.call_reader import CallReader
from service.structured.call_style import Style, style_of


def usage_json(usage: Usage) -> TokenUsage:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            "image_tokens": usage.images,
            "audio_tokens": usage.audio,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def chunk_usage(options: StreamOptions, usage: Usage) -> Json:
    """Return the field `usage` of a chunk: null if only the last one has the numbers, no field if no chunk has them."""
    if options.counts_on:
        return {"usage": usage_json(usage)}
    return {"usage": None} if options.ends_with_usage else {}


def prompt_scores(scored: Sequence[TokenLogprob], tokenizer: Tokenizer) -> PromptLogprobs:
    """Return `prompt_logprobs` as vLLM has them."""

    def scores(item: TokenLogprob) -> dict[str, PromptLogprob]:
        ranked = {token: (logprob, rank) for rank, (token, logprob) in enumerate(item.top, 1)}
        return {
            str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": tokenizer.name(token)}
            for token, (logprob, rank) in ({item.token: (item.logprob, item.rank)} | ranked).items()
        }

    return [None, *map(scores, scored)]


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST_LOGPROB)


@dataclass(slots=True)
class OpenAIShape(PlainEvents):
    """The common part of the objects of completions and chat.

    `logprobs` says whether the request includes them. `kind` and `prefix` are the type of a stream's objects, and the
    beginning of their id. A whole answer repeats the request's metadata.
    """

    body: InitVar[GenerationBody]
    logprobs: bool = False
    model: str = field(init=False)
    tokenizer: Tokenizer = field(init=False)
    fingerprint: str = field(init=False)
    stream: StreamOptions = field(init=False)
    metadata: Json | None = field(init=False)
    token_ids: bool = field(init=False)
    n: int = field(init=False)
    scores_prompt: bool = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()), init=False)
    unique: str = field(default_factory=lambda: uuid.uuid4().hex, init=False)
    kind: ClassVar[str]
    prefix: ClassVar[str]

    def __post_init__(self, body: GenerationBody) -> None:
        """Take what the answer needs of the body: with its messages and images it may be large."""
        self.stream, self.metadata, self.n = body.streaming, body.metadata, body.n_choices
        self.token_ids, self.scores_prompt = bool(body.return_token_ids), body.prompt_logprobs is True

    def identify(self, unique: str, created: int) -> None:
        self.unique, self.created = unique, created

    def begin(self, served: ServedModel, name: str) -> None:
        self.model, self.tokenizer, self.fingerprint = name, served.tokenizer, served.fingerprint

    def closing(self, usage: Usage) -> list[Json]:
        return [{**self._head(), "choices": [], "usage": usage_json(usage)}] if self.stream.ends_with_usage else []

    def _head(self, kind: str | None = None) -> AnswerHead:
        return {
            "id": f"{self.prefix}-{self.unique}",
            "object": kind or self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class CompletionShape(OpenAIShape):
    """Writes `text_completion` objects."""

    __slots__ = ()
    kind, prefix = "text_completion", "cmpl"

    def opening(self, index: int, usage: Usage) -> list[Json]:
        return []

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        chunk: Json = {**self._head(), "choices": [self._choice(index, delta)], **chunk_usage(self.stream, usage)}
        if delta.progress is not None:
            chunk["prompt_progress"] = delta.progress
        return [chunk]

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> Completion:
        choices = [self._choice(index, delta) for index, delta in enumerate(parts)]
        answer: Completion = {**self._head(), "choices": choices, "usage": usage_json(usage), "timings": timings}
        if self.metadata is not None:
            answer["metadata"] = self.metadata
        return answer

    def _choice(self, index: int, delta: Delta) -> CompletionChoice:
        choice: CompletionChoice = {
            "index": index,
            "text": delta.text,
            "logprobs": self._scores(delta.scored) if self.logprobs else None,
            "finish_reason": delta.finish,
            "stop_reason": delta.stop_reason,
        }
        if self.token_ids:
            choice["prompt_token_ids"] = delta.prompt_tokens
            choice["token_ids"] = delta.tokens
        if delta.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_scores(delta.prompt_logprobs, self.tokenizer)
        return choice

    def _scores(self, scored: Sequence[Scored]) -> CompletionLogprobs:
        return {
            "tokens": [self.tokenizer.name(item.token) for item in scored],
            "token_logprobs": [_finite(item.logprob) for item in scored],
            "top_logprobs": [self._top(item) for item in scored],
            "text_offset": [item.start for item in scored],
        }

    def _top(self, item: Scored) -> dict[str, float | None] | None:
        """Return the likeliest tokens and the token itself. If two have the same name, it has the likelier one."""
        if item.logprob is None:
            return None
        top: dict[str, float | None] = {}
        for token, logprob in (*item.top, (item.token, item.logprob)):
            top.setdefault(self.tokenizer.name(token), _finite(logprob))
        return top


@dataclass(slots=True)
class ChatShape(OpenAIShape):
    """Writes `chat.completion` and `chat.completion.chunk` objects. With `calls` the text may contain tool calls.

    Without `thoughts` the answer leaves them out. `chunks_thoughts`: they are chunks of the content. `mistral`: a
    stream ends with its usage, and each piece of a call has a name, as in Mistral's API.
    """

    mistral: bool = False
    chunks_thoughts: bool = False
    calls: bool = False
    thoughts: bool = True
    _style: Style | None = None
    _n_ended: int = 0  # choices
    _blocks: dict[int, BlockReader] = field(default_factory=dict)  # by choice
    kind, prefix = "chat.completion.chunk", "chatcmpl"

    def begin(self, served: ServedModel, name: str) -> None:
        OpenAIShape.begin(self, served, name)
        self._style = style_of(served) if self.calls else None

    def opening(self, index: int, usage: Usage) -> list[Json]:
        return [self._chunk(index, {"role": "assistant", "content": ""}, None, None, usage)]

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        """Return chunks with content, then one with an empty delta and the finish reason, as OpenAI sends them."""
        pieces, finish = self._pieces(index, delta)
        scores = [self._scores(delta.scored)] + [None] * len(pieces)
        frames = [self._chunk(index, piece, own, None, usage) for piece, own in zip(pieces, scores, strict=False)]
        if delta.progress is not None:
            frames.insert(0, self._chunk(index, {}, None, None, usage) | {"prompt_progress": delta.progress})
        if finish:
            frames.append(self._chunk(index, {}, None, finish, usage))
            frames[-1]["choices"][0]["stop_reason"] = delta.stop_reason
            self._n_ended += 1
            if self.mistral and self.stream.include_usage is None and self._n_ended == self.n:
                frames[-1]["usage"] = usage_json(usage)
        if self.token_ids:
            for frame in frames:
                frame["choices"][0]["token_ids"] = ()
            frames[0]["choices"][0]["token_ids"] = delta.tokens
            frames[0]["prompt_token_ids"] = delta.prompt_tokens
        return frames

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> ChatCompletion:
        answer: ChatCompletion = {
            **self._head("chat.completion"),
            "choices": [self._choice(index, delta) for index, delta in enumerate(parts)],
            "usage": usage_json(usage),
            "timings": timings,
        }
        scored = parts[0].prompt_logprobs
        if scored is not None and self.scores_prompt:  # as in Mistral's API
            for choice in answer["choices"]:
                choice["prompt_logprobs"] = {"content": [self._with_top(item) for item in scored]}
        elif scored is not None:
            answer["prompt_logprobs"] = prompt_scores(scored, self.tokenizer)
        if self.metadata is not None:
            answer["metadata"] = self.metadata
        if self.token_ids:
            answer["prompt_token_ids"] = parts[0].prompt_tokens
        return answer

    def _pieces(self, index: int, delta: Delta) -> tuple[list[Json], str | None]:
        """Return the deltas of a chunk, and its finish reason. Logprobs or token ids without text have an empty one."""
        if self._style is None:  # most answers have no calls, and need no blocks
            finish, pieces = delta.finish, [self._thought(delta.thought)] if delta.thought and self.thoughts else []
            pieces += [{"content": delta.text}] if delta.text else []
        else:
            blocks = self._blocks_of(index)
            pieces = [piece for step in blocks.feed(delta) if (piece := self._piece(step))]
            finish = blocks.finish(delta.finish)
        return pieces or ([{"content": ""}] if delta.scored or delta.tokens else []), finish

    def _blocks_of(self, index: int) -> BlockReader:
        if index not in self._blocks:
            self._blocks[index] = self._reader(index)
        return self._blocks[index]

    def _reader(self, index: int) -> BlockReader:
        return BlockReader() if self._style is None else CallReader(self._style, Random(f"{self.unique} {index}"))

    def _piece(self, step: BlockStep) -> Json | None:
        """Return the delta of a message for a step, if it has one."""
        block, known = step.block, {}
        match step.change, block.kind:
            case "text", "text":
                return {"content": step.text}
            case "text", "thought":
                return self._thought(step.text) if self.thoughts else None
            case "begin", "call":
                known, name = {"id": block.id, "type": "function"}, {"name": block.name}
            case "text", "call":
                name = {"name": ""} if self.mistral else {}
            case _:
                return None
        return {"tool_calls": [{"index": block.index, **known, "function": {"arguments": step.text, **name}}]}

    def _thought(self, thought: str) -> Json:
        """Return the fields of a message, or of a delta, with a thought alone."""
        if self.chunks_thoughts:
            return {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": thought}]}]}
        return {"reasoning_content": thought}

    def _choice(self, index: int, delta: Delta) -> ChatChoice:
        reader = self._blocks_of(index)
        blocks = [step.block for step in reader.feed(delta) if step.change == "begin"]
        text = "".join(block.text for block in blocks if block.kind == "text")
        message: ChatMessage = {"role": "assistant", "content": text, "refusal": None}
        if calls := [block for block in blocks if block.kind == "call"]:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
                for call in calls
            ]
        if delta.thought and self.thoughts:
            fields = self._thought(delta.thought)
            if self.chunks_thoughts and text:
                fields["content"].append({"type": "text", "text": text})
            message |= cast("ChatMessage", fields)
        choice: ChatChoice = {
            "index": index,
            "message": message,
            "finish_reason": reader.finish(delta.finish),
            "stop_reason": delta.stop_reason,
            "logprobs": self._scores(delta.scored),
        }
        if self.token_ids:
            choice["token_ids"] = delta.tokens
        return choice

    def _chunk(self, index: int, delta: Json, logprobs: ChatLogprobs | None, finish: str | None, usage: Usage) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head(), "choices": [choice], **chunk_usage(self.stream, usage)}

    def _scores(self, scored: Sequence[Scored]) -> ChatLogprobs | None:
        if not self.logprobs:
            return None
        return {"content": [self._with_top(item) for item in scored], "refusal": None}

    def _with_top(self, item: Scored | TokenLogprob) -> ChatTokenLogprob:
        score = self._score(item.token, item.logprob)
        score["top_logprobs"] = [self._score(token, logprob) for token, logprob in item.top]
        return score

    def _score(self, token: int, logprob: float | None) -> ChatTokenLogprob:
        return {
            "token": self.tokenizer.name(token),
            "token_id": token,
            "logprob": _finite(logprob),
            "bytes": list(self.tokenizer.piece(token) or b""),
        }
