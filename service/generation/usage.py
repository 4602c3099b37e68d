"""The tokens and the time of a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from typing_extensions import TypedDict  # pydantic, which reads it, needs this one before Python 3.12

from model.media import KINDS
from service.engine.messages import Submit


@dataclass(slots=True)
class Usage:
    """The tokens of a request so far. A prompt counts once, whatever its number of choices.

    `reasoning` is the part of `completion` that is thought, `images` and `audio` are the parts of `prompt` that stand
    for them, and `from_disk` is the part of `cached` that was read from the prefix store.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    images: int = 0
    audio: int = 0
    from_disk: int = 0

    @classmethod
    def of(cls, submits: Sequence[Submit]) -> Self:
        """Return the usage before the first token of the answer."""
        spans = [span for submit in submits for span in submit.media]
        images, audio = (sum(span.stop - span.start for span in spans if span.kind == kind) for kind in KINDS)
        return cls(prompt=sum(len(submit.prompt) for submit in submits), images=images, audio=audio)


class CacheMiss(TypedDict):
    """The place where the prompt left the cached prefix: the first prompt token that did not come from it, and why."""

    at: int
    reason: Literal["new", "diverged", "evicted", "window", "salt", "bypassed"]


class Timings(TypedDict):
    """Tokens and milliseconds of a request, by llama.cpp's names: `prompt` until the first token, `predicted` after.

    `load` is the wait until the model was loaded, before all others.

    Of the `cache_n` tokens from the cache `cache_disk_n` were read from the disk. `cache_miss` is null if all full
    pages of the first prompt came from the cache.
    """

    load_ms: float
    queue_ms: float
    cache_n: int
    cache_disk_n: int
    cache_miss: CacheMiss | None
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


def timings(
    usage: Usage, miss: CacheMiss | None, queue: float, prompt: float, predicted: float, load: float = 0.0
) -> Timings:
    """Return the timings of a request that waited `load` and `queue`, then took `prompt` and `predicted` seconds."""
    n_prompt = usage.prompt - usage.cached
    return {
        "load_ms": _ms(load),
        "queue_ms": _ms(queue),
        "cache_n": usage.cached,
        "cache_disk_n": usage.from_disk,
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
