"""The memory of all processes together: of a server without work, and its slope over an hour of mixed work."""

import base64
import contextlib
import random
import time
from functools import partial
from itertools import count
from statistics import linear_regression

import httpx

from benchmarks.memory import beside_weights
from tests.drill.canary import COMPLETIONS, Question, repeated
from tests.drill.faults import audio, images
from tests.drill.row import MIB, LoneRow, check
from tests.drill.target import Target, running
from tests.drill.wire import fetch
from tests.e2e.server import MODEL

IDLE_MB = 420
GROWTH = 1 * MIB
"""Bytes that an hour may add."""
SAMPLE_SECONDS = 5.0
N_CLIENTS = 4
NUMBERS = count()


def idle() -> str:
    """A server that has just started, with one model."""
    with running() as target:
        found = beside_weights(target.pid)
        check(found <= IDLE_MB, f"{found:.0f} MB")
        return f"{found:.0f} MB"


def question(rng: random.Random) -> Question:
    """A request that no server has seen: text with logprobs, alone or with an adapter, an image, a recording."""
    kind = rng.choice(["text", "text", "adapter", "image", "audio"])
    if kind in ("image", "audio"):
        made = images.good() if kind == "image" else audio.good()
        return Question(made.path, made.body | {"model": kind, "logprobs": True, "top_logprobs": 20})
    prompt = base64.b32encode(rng.randbytes(rng.choice([10, 200, 1500]))).decode()
    sampled = {"max_tokens": rng.choice([1, 16, 100]), "temperature": rng.choice([0, 1]), "logprobs": 20}
    name = MODEL if kind == "text" else "adapter"
    return Question(COMPLETIONS, {"model": name, "prompt": prompt, "stream": rng.random() < 0.5, **sampled})


def work(target: Target, number: int) -> float:
    """Ask, and leave before the answer's end every fourth time."""
    rng = random.Random(next(NUMBERS))
    asked = question(rng)
    seconds = rng.uniform(0.02, 1.0) if rng.random() < 0.25 else 60.0
    with contextlib.suppress(httpx.HTTPError):
        fetch("POST", target.url + asked.path, json=asked.body, timeout=seconds)
    return 0.0


def resident(target: Target) -> float:
    """Bytes that no file backs, in memory or swapped, of all processes."""
    kinds = ("anonymous", "swapped")
    return sum(target.metric("noria_process_memory_bytes", kind=kind) for kind in kinds)


def slope(hours: float) -> str:
    """The slope of memory after the first quarter, while clients ask for all that a server can do."""
    with running("everything") as target:
        samples: list[tuple[float, float]] = []
        end = time.monotonic() + 3600 * hours
        with repeated(partial(work, target), N_CLIENTS):
            while time.monotonic() < end:
                samples.append((time.monotonic(), resident(target)))
                time.sleep(SAMPLE_SECONDS)
        times, sizes = zip(*samples[len(samples) // 4 :], strict=True)
        growth = 3600 * linear_regression(times, sizes).slope
        seen = f"{growth / MIB:+.2f} MiB an hour, from {sizes[0] / MIB:.0f} MiB in {hours:g} h"
        check(growth < GROWTH, seen)
        return seen


def leaks(hours: float) -> LoneRow:
    """The row that a run with `--hours` has."""
    own = f"anonymous memory and swap grow by less than {GROWTH // MIB} MiB an hour after the first quarter"
    what = "unique prompts, 20 logprobs, images, audio, an adapter and broken streams"
    return LoneRow(f"{what} for {hours:g} h", own, partial(slope, hours))


ROWS = (LoneRow("none: a server without work", f"all processes take at most {IDLE_MB} MB beside weights", idle),)
