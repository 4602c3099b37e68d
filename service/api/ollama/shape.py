"""The answers of Ollama's API: lines of JSON, of which the last has counts and durations, or one object with all."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

from model.tokenizers.base import Tokenizer
from service.access.record import RequestRecord
from service.api.ollama.answer_types import AnswerLine, MadeCall, TokenChance
from service.generation.choice import LEAST_LOGPROB, Delta, Scored
from service.generation.served import ServedModel
from service.generation.usage import Timings, Usage
from service.http.sse import Json, JsonLines
from service.schema.tools import AllowedCalls
from service.structured.blocks import AnswerBlock, BlockReader, arguments_of
from service.structured.call_reader import reader_of


def head(model: str, *, done: bool) -> AnswerLine:
    """Return the fields of every line."""
    return {"model": model, "created_at": rfc3339(datetime.now(UTC)), "done": done}


def rfc3339(at: datetime) -> str:
    """Write a time in UTC as Go does."""
    return at.isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def durations(record: RequestRecord) -> Json:
    """Return the time since a request came, and its wait until its model was loaded."""
    total = time.perf_counter() - record.started
    return {"total_duration": nanoseconds(total), "load_duration": nanoseconds(record.load_seconds)}


@dataclass(slots=True)
class AnswerShape(JsonLines):
    """Writes lines of an answer. `calls` are those that it may have; each is sent once it is whole."""

    model: str
    record: RequestRecord
    logprobs: bool = False
    calls: AllowedCalls = AllowedCalls()  # noqa: RUF009 - frozen
    tokenizer: Tokenizer | None = None
    blocks: BlockReader = field(default_factory=BlockReader)
    unique: str = ""

    def identify(self, unique: str, created: int) -> None:
        self.unique = unique

    def begin(self, served: ServedModel, name: str) -> None:
        self.tokenizer = served.tokenizer if self.logprobs else None
        self.blocks = reader_of(served, self.calls, Random(self.unique) if self.unique else None)

    def content(self, text: str, thought: str, calls: list[MadeCall]) -> Json:
        """Return the fields of the content of a line."""
        raise NotImplementedError

    def opening(self, index: int, usage: Usage) -> list[Json]:
        return []

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        """Return a line with the content, if there is any, and at the end the last one, without content."""
        text, calls = self._read(delta)
        lines: list[Json] = []
        if text or delta.thought or calls or delta.scored:
            lines.append({**head(self.model, done=False), **self.content(text, delta.thought, calls)})
            lines[-1] |= self._scores(delta.scored)
        if delta.finish is not None:
            lines.append({**head(self.model, done=True), **self.content("", "", []), **_counts(delta, usage)})
        return lines

    def closing(self, usage: Usage) -> list[Json]:
        return []

    def frame(self, data: Json) -> bytes:
        return JsonLines.frame(self, data | self._durations(data["timings"]) if "timings" in data else data)

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> Json:
        (delta,) = parts
        text, calls = self._read(delta)
        answer = {**head(self.model, done=True), **self.content(text, delta.thought, calls), **_counts(delta, usage)}
        return answer | self._scores(delta.scored) | self._durations(timings) | {"timings": timings}

    def _durations(self, timings: Timings) -> Json:
        prompt, answer = timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000
        spent = {"prompt_eval_duration": nanoseconds(prompt), "eval_duration": nanoseconds(answer)}
        return durations(self.record) | spent

    def _read(self, delta: Delta) -> tuple[str, list[MadeCall]]:
        """Return the text of a delta, and the calls that it completes. A call that was cut short is left out."""
        text, calls = "", list[MadeCall]()
        for step in self.blocks.feed(delta):
            match step.change, step.block.kind:
                case "text", "text":
                    text += step.text
                case "end", "call":
                    calls += _made(step.block)
        return text, calls

    def _scores(self, scored: Sequence[Scored]) -> Json:
        if self.tokenizer is None:
            return {}
        tops = [[_score(*one, self.tokenizer) for one in item.top] for item in scored]
        own = [_score(item.token, item.logprob or 0.0, self.tokenizer) for item in scored]
        return {"logprobs": [{**one, "top_logprobs": top} for one, top in zip(own, tops, strict=True)]}


class OllamaChatShape(AnswerShape):
    """Writes the lines of `POST /api/chat`."""

    __slots__ = ()

    def content(self, text: str, thought: str, calls: list[MadeCall]) -> Json:
        some = {"thinking": thought, "tool_calls": calls}
        known = {name: value for name, value in some.items() if value}
        return {"message": {"role": "assistant", "content": text, **known}}


class GeneratedShape(AnswerShape):
    """Writes the lines of `POST /api/generate`."""

    __slots__ = ()

    def content(self, text: str, thought: str, calls: list[MadeCall]) -> Json:
        return {"response": text, **({"thinking": thought} if thought else {})}


def _made(call: AnswerBlock) -> list[MadeCall]:
    """Return a call that has ended, or nothing if it was cut."""
    if (arguments := arguments_of(call.text)) is None:
        return []
    return [{"id": call.id, "function": {"index": call.index, "name": call.name, "arguments": arguments}}]


def _counts(delta: Delta, usage: Usage) -> Json:
    reason = "length" if delta.finish == "length" else "stop"
    return {"done_reason": reason, "prompt_eval_count": usage.prompt, "eval_count": usage.completion}


def _score(token: int, logprob: float, tokenizer: Tokenizer) -> TokenChance:
    piece = list(tokenizer.piece(token) or b"")
    return {"token": tokenizer.name(token), "logprob": max(logprob, LEAST_LOGPROB), "bytes": piece}
