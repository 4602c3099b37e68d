"""Noria's engine without HTTP, for the other benchmarks. OMP_NUM_THREADS sets the number of its threads."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.workload import Generate, Timing, Workload, answer, joining
from model.attention import choose
from model.attention.rope import RopeTables
from model.batch import StepBatch
from model.checkpoint.resolve import EMBEDDED, resolve
from model.kernels.cpu import native
from model.loading import create
from model.options import STEP_LIMITS
from model.sampling_params import SamplingParams
from model.step.executors.torch import TorchExecutor
from model.step.runner import ModelRunner
from service.engine.messages import Submit, Update
from service.engine.scheduling.scheduler import Scheduler

SCHEMES: dict[str, dict[str, str]] = {
    "float32": {"quantize": "none", "dtype": "float32"},
    "bf16": {"quantize": "none", "dtype": "bfloat16"},
    "int8": {"quantize": "int8"},
    "int4": {"quantize": "int4"},
}
"""Noria's weight schemes, as options of the runner; int4 uses the blocks of a GGUF file as they are."""

MAX_SEQUENCES, MAX_STEP_TOKENS = STEP_LIMITS["cpu"]
"""The defaults of `noria serve`."""


def load(model: str = EMBEDDED, **options: Any) -> ModelRunner:
    """A runner with the limits of `noria serve`."""
    limits = {"max_sequences": MAX_SEQUENCES, "max_step_tokens": MAX_STEP_TOKENS}
    return create(lambda stage, done: None, model=str(resolve(model)), **(limits | options))


def by_layer(runner: ModelRunner) -> TorchExecutor:
    """What computes the steps of a runner layer by layer, in place of one call of the compiled kernels."""
    model, device = runner.head.model, runner.head.device
    attention = choose("auto", device, runner.pages.layers[0].k.dtype, kernels=native.kernels())[1]
    tables = RopeTables.build(model.config, runner.info.max_model_len, device)
    return TorchExecutor(model, attention, runner.pages, tables, runner.info, runner._media, runner.head)


def scheduler_for(runner: ModelRunner, max_sequences: int = MAX_SEQUENCES) -> Scheduler:
    return Scheduler(runner.info, max_sequences=max_sequences, max_step_tokens=MAX_STEP_TOKENS)


@dataclass(frozen=True, slots=True)
class Step:
    """A computed step, and the seconds that it took to plan, run and commit it."""

    batch: StepBatch
    updates: list[Update]
    seconds: float


def steps(runner: ModelRunner, scheduler: Scheduler) -> Iterator[Step]:
    """Steps until there is no work. The caller may submit more between two steps."""
    while scheduler.has_work:
        started = time.perf_counter()
        batch = scheduler.plan()
        updates = scheduler.commit(runner.step(batch))
        yield Step(batch, updates, time.perf_counter() - started)


def greedy(n_tokens: int) -> SamplingParams:
    """Parameters for exactly this many tokens, each the likeliest: no token ends the answer."""
    return SamplingParams(temperature=0.0, max_tokens=n_tokens)


def generator(runner: ModelRunner) -> Generate:
    def generate(prompts: list[list[int]], n_tokens: int) -> Timing:
        scheduler = scheduler_for(runner, len(prompts))
        params = greedy(n_tokens + joining(prompts, MAX_STEP_TOKENS))
        for number, prompt in enumerate(prompts):
            scheduler.submit(Submit(number, prompt, params))
        first, tokens, seconds = 0.0, 0, 0.0
        for step in steps(runner, scheduler):
            if step.batch.n_tokens == len(prompts) and all(item.start >= item.n_prompt for item in step.batch.slices):
                tokens, seconds = tokens + step.batch.n_tokens, seconds + step.seconds
            elif not tokens:
                first += step.seconds
        return Timing(first, tokens, seconds)

    return generate


def _load(model: str, work: Workload) -> tuple[Generate, int]:
    runner = load(model, **SCHEMES[sys.argv[3]])
    return generator(runner), runner.info.vocab_size


if __name__ == "__main__":
    answer(_load)
