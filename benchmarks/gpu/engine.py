"""Noria's engine for `benchmarks.gpu`: the real runner and loop, with random weights, without a service."""

import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.shapes import Shapes
from benchmarks.random_weights import checkpoint
from model.config import ModelConfig
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.loop import EngineLoop
from service.engine.messages import FromEngine, Report, Stop, Submit, ToEngine, Update
from service.engine.scheduling.scheduler import Scheduler


class Seen(NamedTuple):
    """A report of the engine: its time, the tokens of its step, the updates, and the number of held pages.

    `memory` is the result of the probe. Only steps with more tokens than streams have it: in the others the time of the
    probe would count.
    """

    at: float
    step_tokens: int
    updates: tuple[Update, ...]
    held: int
    memory: int | None = None


Probe = Callable[[], int | None]


def load(config: ModelConfig, device: torch.device, shapes: Shapes, length: int, **options: Any) -> ModelRunner:
    """A runner with random weights for sequences of up to `length` tokens, made as `noria serve` makes its runner."""
    limits = RunnerOptions(
        "",
        device=device.type,
        max_model_len=length,
        max_sequences=max(shapes.streams),
        max_step_tokens=shapes.step_tokens,
        threads=1 if device.type == "cpu" else None,  # a CPU only tests the benchmark, while other tests run
        **options,
    )
    return load_from(checkpoint(config, device), limits, lambda stage, done: None)


def prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Prompts of random ids, so that no page can be reused. They are the same in every run."""
    rng = random.Random(count * 1_000_003 + length)
    return [[rng.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def serve(
    runner: ModelRunner,
    requests: Sequence[Sequence[int]],
    params: SamplingParams,
    step_tokens: int,
    probe: Probe = lambda: None,
) -> list[Seen]:
    """The reports of the engine for these prompts; the first is the time of submission. Raises errors of steps."""
    scheduler = Scheduler(runner.info, max_sequences=len(requests), max_step_tokens=step_tokens)
    inbox: list[ToEngine] = [Submit(number, list(prompt), params) for number, prompt in enumerate(requests)]
    seen: list[Seen] = []
    running = len(requests)

    def receive(block: bool) -> list[ToEngine]:
        messages, inbox[:] = inbox[:], []
        if messages:
            seen.append(Seen(time.perf_counter(), 0, (), 0))
        return messages if running else [Stop()]

    def send(message: FromEngine) -> None:
        nonlocal running
        assert isinstance(message, Report)
        stats = message.stats
        if seen:
            held = sum(pool.held for pool in stats.pools)
            memory = probe() if stats.step_tokens > len(requests) else None
            seen.append(Seen(time.perf_counter(), stats.step_tokens, message.updates, held, memory))
        for update in message.updates:
            if update.finish == "error":
                raise RuntimeError(update.failure or "the engine refused a sequence")
            running -= update.finish is not None

    with _raising():
        EngineLoop(runner, scheduler, receive, send).run()
    return seen


@contextmanager
def _raising() -> Iterator[None]:
    """Raises an error that the loop would only write to its log."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                raise record.exc_info[1]

    log, handler = logging.getLogger("noria.engine"), Handler(logging.ERROR)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextmanager
def warnings_of_the_model() -> Iterator[list[str]]:
    """Warnings of the model: a graph that could not be captured, a step that did not fit into memory."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    log, handler = logging.getLogger("model"), Handler(logging.WARNING)
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)


def greedy(n_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=n_tokens)


class Decoding(NamedTuple):
    """Steps in which all streams decode: their seconds, the context in the middle one in tokens, and all reports."""

    seconds: list[float]
    context: int
    seen: list[Seen]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def held(self) -> int:
        """The greatest number of held pages."""
        return max(one.held for one in self.seen)


def decode(runner: ModelRunner, shapes: Shapes, streams: int, length: int, probe: Probe = lambda: None) -> Decoding:
    """The measurement of `streams` streams, each after a prompt of `length` tokens."""
    prompt_tokens = shapes.step_tokens - streams  # tokens of a step for prompts, when the other streams decode
    joining = -(-streams * length // max(prompt_tokens, 1)) + 2
    params = greedy(joining + shapes.warm_up + shapes.tokens)
    seen = serve(runner, prompts(streams, length, runner.info.vocab_size), params, shapes.step_tokens, probe)
    alone = [
        after.at - before.at
        for before, after in pairwise(seen)
        if all(one.step_tokens == streams == len(one.updates) for one in (before, after))
    ]
    counted = alone[shapes.warm_up :]
    if len(counted) < shapes.tokens // 2:
        raise RuntimeError(f"only {len(alone)} steps had all {streams} streams decode")
    context = length + params.max_tokens - len(counted) // 2
    return Decoding(counted, context, seen)


def prefill(runner: ModelRunner, shapes: Shapes) -> float:
    """Median seconds from a long prompt to its first token, after one prompt to warm up."""
    requests = prompts(shapes.repeats + 1, shapes.prefill, runner.info.vocab_size)
    took = []
    for prompt in requests:
        seen = serve(runner, [prompt], greedy(1), shapes.step_tokens)
        first = next(one.at for one in seen if any(update.tokens for update in one.updates))
        took.append(first - seen[0].at)
    return statistics.median(took[1:])
