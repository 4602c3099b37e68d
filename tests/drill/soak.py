"""The soak: mixed load with random aborts, and the slope of memory, descriptors and threads."""

import contextlib
import random
import time
from collections.abc import Sequence
from functools import partial
from statistics import linear_regression

import httpx

from tests.drill.canary import COMPLETIONS, repeated
from tests.drill.forms import new_form
from tests.drill.row import MIB, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.target import Target
from tests.drill.wire import fetch

SAMPLE_SECONDS = 1.0
GROWTH_MEMORY = 24 * MIB
GROWTH_COUNT = 4.0
"""What the second half of a soak may add, by its slope."""
ABORTERS = 3
ASKERS = 4


def slope(values: Sequence[float]) -> float:
    """The growth from the first to the last of evenly spaced values, along the least-squares line."""
    return (len(values) - 1) * linear_regression(range(len(values)), values).slope


def measure(target: Target) -> tuple[float, float, float]:
    """Memory, descriptors and threads of all processes of a server."""
    found = target.processes()
    return (
        sum(process.memory for process in found),
        sum(process.descriptors for process in found),
        sum(process.status("Threads") for process in found),
    )


def abort(stage: Stage, number: int) -> float:
    """Begin a request of any kind, and go away after a while."""
    rng = random.Random(number)
    body = {
        "prompt": "wheel " * rng.choice([1, 20, 400]),
        "max_tokens": rng.choice([1, 16, 200]),
        "n": rng.choice([1, 1, 4]),
        "temperature": rng.choice([0, 1]),
        "stream": rng.random() < 0.5,
    }
    path = COMPLETIONS
    if rng.random() < 0.2:
        question, _ = new_form()
        path, body = question.path, question.body
    with contextlib.suppress(httpx.HTTPError):
        fetch("POST", stage.target.url + path, json=body, timeout=rng.uniform(0.05, 3.0))
    return 0.0


def fill_cache(url: str) -> None:
    """Touch all pages of the KV cache, so that memory does not grow by that later."""
    body = {"prompt": [100 + number for number in range(8000)], "max_tokens": 1}
    fetch("POST", url + COMPLETIONS, json=body, timeout=300)


def run(seconds: float, stage: Stage) -> str:
    """Load the server, and look at the slopes of the second half."""
    samples: list[tuple[float, float, float]] = []
    fill_cache(stage.target.url)
    end = time.monotonic() + seconds
    with repeated(partial(abort, stage), ABORTERS):
        while time.monotonic() < end:
            samples.append(measure(stage.target))
            time.sleep(SAMPLE_SECONDS)
    half = samples[len(samples) // 2 :]
    memory, descriptors, threads = (slope(column) for column in zip(*half, strict=True))
    counts = f"descriptors {descriptors:+.1f}, threads {threads:+.1f}"
    seen = f"in {seconds / 2:.0f} s: memory {memory / MIB:+.1f} MiB, {counts}"
    check(memory <= GROWTH_MEMORY and max(descriptors, threads) <= GROWTH_COUNT, seen)
    return seen


def soak(seconds: float) -> Row:
    """The row that fills the rest of a run."""
    bounds = f"memory grows by at most {GROWTH_MEMORY // MIB} MiB, threads and descriptors by {GROWTH_COUNT:g}"
    own = f"by the slope of its second half, {bounds}"
    promise = Promise(own, answers=30.0, memory=128 * MIB)
    return Row(
        f"mixed load with random aborts for {seconds / 60:.0f} minutes", promise, partial(run, seconds), askers=ASKERS
    )
