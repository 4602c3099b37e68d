"""Measures the time of the host in a step on a GPU, where kernels compute nothing, and counts launches.

    scripts/on-simulated-gpu -m tests.gpu.simulated.host_time [MODELS]

Networks have their real shapes; their weights are memory that nobody writes. Times are processor time of the thread
that launches: the median of 30 steps. Not in them: the driver's own time for a launch, about 2 us, and the scheduler's.
"""

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

os.environ.setdefault("SIM_SKIP", "100000")  # longer copies are not done: they would touch the weights' memory

import torch

from benchmarks.gpu.shapes import MISTRAL_7B
from model.checkpoint.open import Checkpoint
from model.checkpoint.stored import Stored
from model.config.model import ModelConfig
from model.loading import load_from
from model.network.tensors import places
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.sharding.shard import shard_of
from model.step.runner import ModelRunner
from model.warming import step
from tests.gpu.simulated import noop
from tests.gpu.simulated.counts import Counts, counts

SMALL_24B = replace(MISTRAL_7B, dim=5120, n_layers=40, hidden_dim=32_768, vocab_size=131_072, windows=(None,) * 40)
MODELS: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "7b": (MISTRAL_7B, {"dtype": "bfloat16"}),
    "24b": (SMALL_24B, {"dtype": "bfloat16", "quantize": "fp8"}),
}
BEFORE = 1000
"""Tokens before those of the step."""
REPEATS = 30
PLAIN = SamplingParams(max_tokens=1)
TOP_P = SamplingParams(max_tokens=1, top_p=0.9)
STEPS: dict[str, tuple[Sequence[int], SamplingParams]] = {
    "prompt of 128 beside 32 streams": ((128, *[1] * 32), PLAIN),
    "prompt of 512 beside 32 streams": ((512, *[1] * 32), PLAIN),
    "1 stream": ((1,), PLAIN),
    "256 streams": ((1,) * 256, PLAIN),
    "1 stream, top_p": ((1,), TOP_P),
    "256 streams, top_p": ((1,) * 256, TOP_P),
}


class Replays:
    """Notes when a graph is replayed."""

    def __init__(self) -> None:
        self.begun, self.ended, self.n = 0.0, 0.0, 0
        # Private: PyTorch calls nobody before and after a replay.
        torch.cuda.CUDAGraph.replay = self._timed(torch.cuda.CUDAGraph.replay)  # type: ignore[method-assign, assignment]

    def _timed(self, own: Callable[[Any], None]) -> Callable[[Any], None]:
        def replay(graph: Any) -> None:
            self.begun, self.n = time.thread_time(), self.n + 1
            own(graph)
            self.ended = time.thread_time()

        return replay


class Times(NamedTuple):
    """Milliseconds of a step: all, and those before and after the replay of its graph if there is one."""

    whole: float | None
    before: float | None = None
    after: float | None = None


class Loaded(NamedTuple):
    """A network, and what its load has counted."""

    runner: ModelRunner
    n_weights: int
    counted: Counts


def unfilled(config: ModelConfig) -> Checkpoint:
    """A checkpoint whose tensors are memory that nobody has written."""

    def read(skip: Collection[str]) -> Iterator[tuple[str, Stored]]:
        for name, place in places(shard_of(config)):
            if name not in skip:
                yield name, Stored(torch.empty(place.shape, dtype=torch.bfloat16))

    return Checkpoint(config, "half", read)


def load(config: ModelConfig, **options: Any) -> Loaded:
    """A runner of the limits of `noria serve`, and the counts of its stage "loading weights"."""
    seen: dict[str, Counts] = {}

    def progress(stage: str, done: float) -> None:
        seen.setdefault(stage.partition(" CUDA graph")[0], counts())

    chosen = RunnerOptions("", device="cuda", max_model_len=8192, **options)
    runner = load_from(unfilled(config), chosen, progress)
    stages = list(seen)
    after = stages[stages.index("loading weights") + 1]
    n_weights = sum(part.numel() for part in runner.head.model.parameters())
    return Loaded(runner, max(n_weights, config.n_parameters), seen[after].since(seen["loading weights"]))


def measure(runner: ModelRunner, replays: Replays, lengths: Sequence[int], params: SamplingParams) -> Times:
    batch = step(runner.info, lengths, params, before=BEFORE)
    found = [one(runner, replays, batch) for _ in range(REPEATS + 3)][3:]
    whole, before, after = ([part for part in column if part is not None] for column in zip(*found, strict=True))
    return Times(median_ms(whole), median_ms(before), median_ms(after))


def median_ms(seconds: Sequence[float]) -> float | None:
    return 1000 * statistics.median(seconds) if seconds else None


def one(runner: ModelRunner, replays: Replays, batch: Any) -> Times:
    """Seconds of a step, from its launch until its tokens are read."""
    n_replays, begun = replays.n, time.thread_time()
    runner.launch(batch)()
    ended = time.thread_time()
    if replays.n == n_replays:
        return Times(ended - begun)
    return Times(ended - begun, replays.begun - begun, ended - replays.ended)


class Row(NamedTuple):
    """A measured step: its times, launches, and waits for the device."""

    times: Times
    launches: int
    waits: int


def rows(config: ModelConfig, replays: Replays, **options: Any) -> tuple[dict[str, Row], Loaded]:
    loaded = load(config, **options)
    found = {}
    for name, (lengths, params) in STEPS.items():
        times = measure(loaded.runner, replays, lengths, params)
        before = counts()
        loaded.runner.launch(step(loaded.runner.info, lengths, params, before=BEFORE))()
        counted = counts().since(before)
        found[name] = Row(times, counted.launches, counted.waits)
    return found, loaded


def show(name: str, config: ModelConfig, found: dict[str, Row], loaded: Loaded) -> None:
    print(f"{name}: {config.n_layers} layers of {config.dim} channels, {config.vocab_size:,} tokens")
    print(f"  {'ms of the host':33}  whole   before replay   after replay   launches   waits")
    for step_name, (times, launches, waits) in found.items():
        whole, before, after = ("" if part is None else f"{part:.2f}" for part in times)
        print(f"  {step_name:33} {whole:>6}   {before:>13}   {after:>12}   {launches:8}   {waits:5}")
    per = 1e9 / loaded.n_weights
    print(
        f"  start: {loaded.counted.launches * per:,.0f} launches and {loaded.counted.waits * per:,.0f} waits "
        f"for 10^9 weights",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*MODELS], help=f"of {', '.join(MODELS)}")
    args = parser.parse_args()
    noop.install()
    replays = Replays()
    for name in args.models:
        config, options = MODELS[name]
        show(name, config, *rows(config, replays, **options))
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
