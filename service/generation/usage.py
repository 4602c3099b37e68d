"""What a request has used: tokens and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from typing_extensions import TypedDict  # pydantic, which reads it, needs this one before Python 3.12

from service.generation.request import Prompt


@dataclass(slots=True)
class Usage:
    """The tokens of a request so far. A prompt counts once, whatever its number of choices.

    `reasoning` is the part of `completion` that is thought, and `images` the part of `prompt` that stands for images.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    images: int = 0

    @classmethod
    def of(cls, prompts: Sequence[Prompt]) -> Self:
        """Before the first token of the answer."""
        spans = [span for prompt in prompts for span in prompt.submit.images]
        return cls(
            prompt=sum(len(prompt.tokens) for prompt in prompts), images=sum(span.stop - span.start for span in spans)
        )


class CacheMiss(TypedDict):
    """Where the prompt left the cached prefix: the first prompt token that did not come from it, and why."""

    at: int
    reason: Literal["new", "diverged", "evicted", "window", "salt", "bypassed"]


class Timings(TypedDict):
    """Tokens and milliseconds of a request, by llama.cpp's names: `prompt` until the first token, `predicted` after.

    `cache_miss` is null if all full pages of the first prompt came from the cache.
    """

    queue_ms: float
    cache_n: int
    cache_miss: CacheMiss | None
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


def timings(usage: Usage, miss: CacheMiss | None, queue: float, prompt: float, predicted: float) -> Timings:
    """The timings of a request that waited `queue` seconds, then took `prompt` and `predicted` seconds."""
    n_prompt = usage.prompt - usage.cached
    return {
        "queue_ms": _ms(queue),
        "cache_n": usage.cached,
        "cache_miss": miss,
        "prompt_n": n_prompt,
        "prompt_ms": _ms(prompt),
        "prompt_per_second": round(n_prompt / prompt, 2) if prompt else 0.0,
        "predicted_n": usage.completion,
        "predicted_ms": _ms(predicted),
        "predicted_per_second": round(usage.completion / predicted, 2) if predicted else 0.0,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
