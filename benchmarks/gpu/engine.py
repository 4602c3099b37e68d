"""Noria's engine for `benchmarks.gpu`: the real runner and loop, with random weights, without a service."""

import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from benchmarks.gpu.shapes import Shapes
from benchmarks.random_weights import checkpoint
from model.batch import StepBatch, StepOutput
from model.checkpoint.files import Progress
from model.config.model import ModelConfig
from model.loading import load_from
from model.media import MediaWork
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.loop import EngineLoop
from service.engine.messages import FromEngine, Report, Stop, Submit, ToEngine, Update
from service.engine.scheduling.scheduler import Scheduler


class Seen(NamedTuple):
    """A report of the engine: its time, the tokens of its step, the updates, and the number of held pages.

    So far `launched` steps were launched, `ahead` of them while another was in flight. `memory` is the result of the
    probe. Only steps with more tokens than updates have it: in the others the time of the probe would count.
    """

    at: float
    step_tokens: int
    updates: tuple[Update, ...]
    held: int
    memory: int | None = None
    launched: int = 0
    ahead: int = 0


Probe = Callable[[], int | None]
Wait = Callable[[], StepOutput]


class Launches:
    """Counts the steps that a runner launches, and those of them that it launches while another is in flight."""

    def __init__(self, launch: Callable[[StepBatch], Wait]) -> None:
        self._launch = launch
        self._in_flight = self.total = self.ahead = 0

    def __call__(self, batch: StepBatch) -> Wait:
        self.total, self.ahead = self.total + 1, self.ahead + bool(self._in_flight)
        wait = self._launch(batch)
        self._in_flight += 1

        def landed() -> StepOutput:
            self._in_flight -= 1
            return wait()

        return landed


def load(
    config: ModelConfig,
    device: torch.device,
    shapes: Shapes,
    length: int,
    progress: Progress = lambda stage, done: None,
    **options: Any,
) -> ModelRunner:
    """A runner with random weights for sequences of up to `length` tokens, made as `noria serve` makes its runner."""
    limits = RunnerOptions(
        "",
        device=device.type,
        max_model_len=length,
        max_sequences=max(shapes.streams),
        max_step_tokens=shapes.step_tokens,
        max_loras=shapes.adapters,
        threads=1 if device.type == "cpu" else None,  # a CPU only tests the benchmark, while other tests run
        **options,
    )
    return load_from(checkpoint(config, device), limits, progress)


def prompts(count: int, length: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Prompts of random ids, so that no page can be reused. They are the same in every run."""
    rng = random.Random((seed * 1009 + count) * 1_000_003 + length)
    return [[rng.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def submits(requests: Sequence[Sequence[int]], params: SamplingParams, adapters: int = 0) -> list[ToEngine]:
    """Requests for these prompts; the one with number i uses adapter i modulo `adapters`."""
    return [
        Submit(number, list(prompt), params, adapter=number % adapters + 1 if adapters else 0)
        for number, prompt in enumerate(requests)
    ]


def serve(
    runner: ModelRunner,
    arriving: Sequence[Sequence[ToEngine]],
    step_tokens: int,
    probe: Probe = lambda: None,
) -> list[Seen]:
    """The reports of the engine; before step i it gets the requests `arriving[i]`. Raises errors of steps.

    The first report is the time at which the first requests arrive.
    """
    running = sum(map(len, arriving))
    scheduler = Scheduler(runner.info, max_sequences=runner.info.max_sequences, max_step_tokens=step_tokens)
    messages, launches, seen = iter(arriving), Launches(runner.launch), list[Seen]()

    def receive(block: bool) -> list[ToEngine]:
        arrived = list(next(messages, ()))
        if arrived and not seen:
            seen.append(Seen(time.perf_counter(), 0, (), 0))
        return arrived if running else [Stop()]

    def send(message: FromEngine) -> None:
        nonlocal running
        assert isinstance(message, Report)
        stats = message.stats
        if seen:
            held = sum(pool.held for pool in stats.pools)
            memory = probe() if stats.step_tokens > len(message.updates) else None
            counts = launches.total, launches.ahead
            seen.append(Seen(time.perf_counter(), stats.step_tokens, message.updates, held, memory, *counts))
        for update in message.updates:
            if update.finish == "error":
                raise RuntimeError(update.failure or "the engine refused a sequence")
            running -= update.finish is not None

    with _raising(), patch.object(runner, "launch", launches):
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


GREEDY = greedy(1)


class Decoding(NamedTuple):
    """Steps in which all streams decode: their seconds, the contexts in the middle one in tokens, and all reports."""

    seconds: list[float]
    contexts: list[int]
    seen: list[Seen]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def held(self) -> int:
        """The greatest number of held pages."""
        return max(one.held for one in self.seen)


def decode(
    runner: ModelRunner,
    shapes: Shapes,
    lengths: Sequence[int],
    params: SamplingParams = GREEDY,
    *,
    probe: Probe = lambda: None,
    adapters: int = 0,
) -> Decoding:
    """The measurement of streams that decode after prompts of these lengths, in tokens."""
    streams = len(lengths)
    prompt_tokens = shapes.step_tokens - streams  # tokens of a step for prompts, when the other streams decode
    joining = -(-sum(lengths) // max(prompt_tokens, 1)) + 2
    params = replace(params, max_tokens=joining + shapes.warm_up + shapes.tokens)
    requests = [prompts(1, length, runner.info.vocab_size, i)[0] for i, length in enumerate(lengths)]
    seen = serve(runner, [submits(requests, params, adapters)], shapes.step_tokens, probe)
    alone = [
        after.at - before.at
        for before, after in pairwise(seen)
        if all(one.step_tokens == streams == len(one.updates) for one in (before, after))
    ]
    counted = alone[shapes.warm_up :]
    if len(counted) < shapes.tokens // 2:
        raise RuntimeError(f"only {len(alone)} steps had all {streams} streams decode")
    answered = params.max_tokens - len(counted) // 2
    return Decoding(counted, [length + answered for length in lengths], seen)


def prefill(runner: ModelRunner, shapes: Shapes) -> float:
    """Median seconds from a long prompt to its first token, after one prompt to warm up."""
    requests = prompts(shapes.repeats + 1, shapes.prefill, runner.info.vocab_size)
    took = []
    for prompt in requests:
        seen = serve(runner, [submits([prompt], GREEDY)], shapes.step_tokens)
        first = next(one.at for one in seen if any(update.tokens for update in one.updates))
        took.append(first - seen[0].at)
    return statistics.median(took[1:])


def arrive(runner: ModelRunner, shapes: Shapes) -> list[Seen]:
    """The reports while requests arrive as `Shapes.load` says. They are the same in every run."""
    load = shapes.load
    rng = random.Random(load.steps)
    at, arrives = list[int](), 0.0
    while (arrives := arrives + rng.expovariate(load.rate)) < load.settled + load.steps:
        at.append(int(arrives))
    requests = submits(prompts(len(at), load.prompt, runner.info.vocab_size), greedy(load.answer))
    arriving = [[one for when, one in zip(at, requests, strict=True) if when == step] for step in range(max(at) + 1)]
    return serve(runner, arriving, shapes.step_tokens)


def between(seen: Sequence[Seen], settled: int, steps: int) -> list[Seen]:
    """The reports from the one after which `settled` steps have been launched, over `steps` more."""
    return [one for one in seen if settled <= one.launched <= settled + steps]


def image(runner: ModelRunner, side: int) -> MediaWork:
    """The work of encoding a square image of about `side` pixels, all of it in one step."""
    form = runner.info.images
    assert form is not None, "the network has no image encoder"
    n = -(-side // form.token_side)
    pixels = random.Random(side).randbytes(form.n_bytes(n, n))
    return MediaWork(0, n, n, pixels, 0, form.n_patches(n, n), form.n_patches(n, n))


def encode(runner: ModelRunner, work: MediaWork) -> None:
    """Encode an image and forget it. Raises an error for one that cannot be encoded."""
    if faults := runner.launch(StepBatch((), media=(work,)))().media_faults:
        raise RuntimeError(faults[work.number])
    runner.launch(StepBatch((), forgotten=(work.number,)))()
