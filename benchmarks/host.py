"""What the host does in each step beside the device, in microseconds of processor time: no GPU, no network.

The engine's own loop runs one step ahead over a `ModelRunner` whose model is a stand-in: all of the host's work is
real, down to the inputs of a captured graph, and nothing is computed. Every sequence has about 2,048 tokens. Every
cell is the least of `STEPS` steps, because other programs only add time; `total` is the least whole step, `median` the
median one.

    python -m benchmarks.host --against main --rounds 3
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.kernels import ROOT, worktree
from model.attention.cache import PagePools
from model.batch import PoolSpec, RunnerInfo, StepBatch, StepOutput
from model.network.adapters import AdapterStore
from model.sampling_params import SamplingParams
from model.step import packing, sampler
from model.step.executors import graphs
from model.step.executors.graphs import GraphExecutor
from model.step.executors.torch import TorchExecutor
from model.step.head import OutputHead
from model.step.masks import Masks
from model.step.media import Encodings
from model.step.runner import ModelRunner
from service.engine.loop import EngineLoop
from service.engine.messages import FromEngine, Stop, Submit, ToEngine, frame
from service.engine.scheduling.scheduler import Scheduler

T = TypeVar("T")

LENGTH, VOCAB = 2048, 64
STEPS = 40
STEP_TOKENS = 2**17
MIXED_PROMPT = 512
ROWS = ("assume", "plan", "pack", "fill", "sample", "launch", "read", "commit", "encode", "loop")
"""`launch` and `read` are the runner without `pack`, `fill` and `sample`, `loop` is what the engine's loop does itself.
`sample` includes the compiled kernel of a CPU over a small vocabulary, in place of the launches on a GPU."""


class Case(NamedTuple):
    """Steps of `n` sequences that decode; `mixed` ones also compute the whole prompt of one that is just admitted."""

    n: int
    page_size: int = 32
    window: int | None = None
    mixed: bool = False

    @property
    def name(self) -> str:
        window = "" if self.window is None else f", window {self.window}"
        return f"{self.n}{f', pages of {self.page_size}' * (self.page_size != 32)}{window}{', mixed' * self.mixed}"


CASES = [Case(64), Case(256), Case(1024), Case(256, page_size=16), Case(256, window=1024), Case(256, mixed=True)]


class Meter:
    """Processor time of this thread by name, without that of calls inside, for each step."""

    def __init__(self) -> None:
        self.steps: list[Counter[str]] = []
        self._inside = 0
        self._begun = 0

    def next(self) -> None:
        """Begin a step. The time that no call had is the loop's."""
        now = time.thread_time_ns()
        if self.steps:
            self.steps[-1]["total"] = now - self._begun
            self.steps[-1]["loop"] = now - self._begun - self._inside
        self.steps.append(Counter())
        self._inside, self._begun = 0, time.thread_time_ns()

    def timed(self, name: str, call: Callable[..., T]) -> Callable[..., T]:
        def timing(*args: Any, **more: Any) -> T:
            before, self._inside, began = self._inside, 0, time.thread_time_ns()
            try:
                return call(*args, **more)
            finally:
                took = time.thread_time_ns() - began
                self.steps[-1][name] += took - self._inside
                self._inside = before + took

        return timing


class NoModel:
    """Stands for a network: hidden states and logits without a computation."""

    layers = ()
    config = SimpleNamespace(vocab_size=VOCAB)
    has_head = True

    def parameters(self) -> Iterator[Tensor]:
        yield torch.zeros(1)

    def __call__(self, inputs: Any, *others: object) -> Tensor:
        return torch.zeros(len(inputs.tokens), 1)

    def logits(self, rows: Tensor, adapters: object = None) -> Tensor:
        return torch.zeros(len(rows), VOCAB)


def _captured(compute: Callable[[], Tensor]) -> Callable[[], None]:
    compute()
    return lambda: None


def _runner(case: Case) -> ModelRunner:
    pool = PoolSpec(case.window, (case.n + 8) * (LENGTH + 512) // case.page_size)
    info = RunnerInfo(case.page_size, (pool,), 2 * LENGTH, VOCAB, 1, 2 * case.n, STEP_TOKENS, {}, runs_ahead=True)
    device, model = torch.device("cpu"), cast(Any, NoModel())
    masks, images = Masks(cast(Any, None), VOCAB), Encodings(None)
    head = OutputHead(model, AdapterStore(cast(Any, None), 1), (masks.step,), None)
    pools, tables = PagePools((), ()), SimpleNamespace(device=device)
    eager = TorchExecutor(model, cast(Any, None), pools, cast(Any, tables), info, images, head)
    runner = ModelRunner(GraphExecutor(eager, case.n, _captured), head, pools, info, masks, images)
    while runner.idle():
        pass
    return runner


class Metered:
    """A runner and its meter: calls of `launch` and of what it returns are timed."""

    def __init__(self, runner: ModelRunner, meter: Meter) -> None:
        self.info = runner.info
        self.grammar_restarts, self.waits_for_grammars = 0, False
        self.idle = runner.idle
        self._launch, self._meter = meter.timed("launch", runner.launch), meter

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        return self._meter.timed("read", self._launch(batch))


def _submits(case: Case, steps: int) -> list[list[ToEngine]]:
    """The messages before each step. Prompts have different lengths, so that each step fills its share of pages."""
    draw, params = random.Random(0), SamplingParams(temperature=0.7, max_tokens=LENGTH // 2)
    first: list[ToEngine] = [
        Submit(number, draw.choices(range(VOCAB), k=LENGTH + number % case.page_size), params)
        for number in range(case.n)
    ]
    short = SamplingParams(temperature=0.7, max_tokens=1)
    later: list[list[ToEngine]] = [
        [Submit(case.n + step, draw.choices(range(VOCAB), k=MIXED_PROMPT), short)] if case.mixed else []
        for step in range(steps)
    ]
    return [first, *later, [Stop()]]


def measure(case: Case) -> dict[str, float]:
    """Microseconds of each of `ROWS` and of the whole step."""
    meter, runner = Meter(), _runner(case)
    warm = 6 + case.n * (LENGTH + case.page_size) // STEP_TOKENS
    messages = iter(_submits(case, warm + STEPS))

    def receive(block: bool) -> list[ToEngine]:
        arrived = next(messages)
        meter.next()
        return arrived

    def send(message: FromEngine) -> None:
        encode(message)

    encode = meter.timed("encode", frame)
    meter.next()
    scheduler = Scheduler(runner.info, max_sequences=runner.info.max_sequences, max_step_tokens=STEP_TOKENS)
    for name in ("assume", "plan", "commit"):
        setattr(scheduler, name, meter.timed(name, getattr(scheduler, name)))
    places = ((packing, "columns", "pack"), (graphs.StaticInputs, "fill", "fill"), (sampler, "sample", "sample"))
    originals = [getattr(owner, attribute) for owner, attribute, _ in places]
    for (owner, attribute, name), original in zip(places, originals, strict=True):
        setattr(owner, attribute, _method(meter.timed(name, original)))
    try:
        EngineLoop(cast(Any, Metered(runner, meter)), scheduler, receive, send).run()
    finally:
        for (owner, attribute, _), original in zip(places, originals, strict=True):
            setattr(owner, attribute, original)
    steps = meter.steps[-1 - STEPS : -1]
    found = {name: min(step[name] for step in steps) / 1000 for name in (*ROWS, "total")}
    return found | {"median": median(step["total"] for step in steps) / 1000}


def _method(call: Callable[..., T]) -> Callable[..., T]:
    """A plain function, which a class binds as a method."""
    return lambda *args, **more: call(*args, **more)


def _answer(names: list[str]) -> None:
    print(json.dumps({case.name: measure(case) for case in CASES if not names or case.name in names}))


def _ask(tree: str, names: list[str]) -> dict[str, dict[str, float]]:
    """What this file measures with the sources of a tree, in a process of its own."""
    command = [sys.executable, "-P", __file__, "--answer", *names]
    environment = os.environ | {"PYTHONPATH": tree, "OMP_NUM_THREADS": "1"}  # spinning threads would count as work
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return cast(dict[str, dict[str, float]], json.loads(done.stdout))


def _table(found: list[dict[str, dict[str, float]]], against: str | None) -> Table:
    cases = found[0]
    result = Table(f"microseconds{f' ({against})' if against else ''}", *cases)
    for column in result.columns[1:]:
        column.justify = "right"
    for row in next(iter(cases.values())):
        before = [f" ({found[-1][case][row]:.0f})" if against else "" for case in cases]
        result.add_row(row, *(f"{cases[case][row]:.0f}{was}" for case, was in zip(cases, before, strict=True)))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"some of: {'; '.join(case.name for case in CASES)}")
    parser.add_argument("--against", metavar="REV", help="git revision to compare with, in turns")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        _answer(args.cases)
    else:
        Console().print(_table(_compare(args.cases, args.against, args.rounds), args.against))


def _compare(names: list[str], against: str | None, rounds: int) -> list[dict[str, dict[str, float]]]:
    found: list[dict[str, dict[str, float]]] = []
    with ExitStack() as stack:
        trees = [str(ROOT)] + ([str(stack.enter_context(worktree(against)))] if against else [])
        for _ in range(rounds):
            news = [_ask(tree, names) for tree in trees]
            found = [_least(*pair) for pair in zip(found, news, strict=True)] if found else news
    return found


def _least(one: dict[str, dict[str, float]], other: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {case: {row: min(us, other[case][row]) for row, us in rows.items()} for case, rows in one.items()}


if __name__ == "__main__":
    main()
