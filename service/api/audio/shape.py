"""Writes transcripts: whole, or as the events of OpenAI's stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from service.api.audio.answer_types import TranscriptUsage
from service.errors.dialects import OPENAI
from service.errors.errors import ApiError
from service.generation.choice import Delta
from service.generation.served import ServedModel
from service.generation.usage import Timings, Usage
from service.http.sse import Json, TypedEvents


@dataclass(slots=True)
class TranscriptShape(TypedEvents):
    """The writer of one transcript. `about` and the `seconds` of the recording are for `verbose_json` only."""

    about: Json | None
    seconds: float = 0.0
    _texts: list[str] = field(default_factory=list)

    def identify(self, unique: str, created: int) -> None: ...

    def begin(self, served: ServedModel, name: str) -> None: ...

    def failure(self, error: ApiError) -> Json:
        return {"type": "error", **OPENAI.write(error)}

    def opening(self, index: int, usage: Usage) -> list[Json]:
        return []

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        self._texts.append(delta.text)
        return [{"type": "transcript.text.delta", "delta": delta.text}] if delta.text else []

    def closing(self, usage: Usage) -> list[Json]:
        return [{"type": "transcript.text.done", "text": "".join(self._texts), "usage": usage_of(usage)}]

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> Json:
        about = {} if self.about is None else {**self.about, "duration": round(self.seconds, 3)}
        return {**about, "text": parts[0].text, "usage": usage_of(usage), "timings": timings}


def usage_of(usage: Usage) -> TranscriptUsage:
    return {
        "type": "tokens",
        "input_tokens": usage.prompt,
        "input_token_details": {"text_tokens": usage.prompt - usage.audio, "audio_tokens": usage.audio},
        "output_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }
