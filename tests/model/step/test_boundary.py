"""The error boundary: a slice that makes a step raise, or whose numbers are not finite, ends alone. Others keep their
bits."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.batch import PageTable, Slice, SliceOutput, StepBatch, StepOutput
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.runner import ALL_HIDDEN, BROKEN_NUMBERS, ModelRunner
from tests.model.driving import checkpoint, tiny

ROOT = Path(__file__).parents[3]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, logprobs=2)
SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=40, top_p=0.9)
KINDS = [
    GREEDY,
    SEEDED,
    replace(GREEDY, prompt_logprobs=1),
    replace(GREEDY, max_tokens=0, embed="mean"),
    replace(GREEDY, max_tokens=0, embed="last"),
]
ERRORS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    RuntimeError("a kernel refuses this slice"),
    ValueError("the page table of /a/file is too short"),
]


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    """A runner in int8, where a row's bits depend on no other row, with a windowed and a full layer."""
    options = RunnerOptions("", device="cpu", quantize="int8", cache_memory=2**22)
    return load_from(checkpoint(tiny((5, None))), options, lambda stage, done: None)


def part(number: int, params: SamplingParams, start: int = 0, length: int = 9) -> Slice:
    tokens = [(7 * i + 11 * number + i * i) % 64 for i in range(length)]
    tables = tuple(PageTable(0, [number]) for _ in range(2))
    return Slice(number, tokens, length, start, length, tables, params)


@pytest.fixture
def batch() -> StepBatch:
    return StepBatch(tuple(part(number, params) for number, params in enumerate([*KINDS, GREEDY])))


class Raising:
    """A part of a step's work that raises for the slices of some sequences, after all of it was done."""

    def __init__(self, work: Callable[..., Any], guilty: set[int], error: Exception, times: int = 10**6) -> None:
        self.work, self.guilty, self.error, self.times = work, guilty, error, times

    def __call__(self, batch: StepBatch, *more: Any, **named: Any) -> Any:
        result = self.work(batch, *more, **named)
        if self.times and self.guilty & {item.sequence_id for item in batch.slices}:
            self.times -= 1
            raise self.error
        return result


def same(found: StepOutput, expected: StepOutput, but: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    """All outputs are equal except those at the places `but`. Sums over a prompt's chunks may be rounded."""
    for place, (mine, theirs) in enumerate(zip(found.slices, expected.slices, strict=True)):
        if place not in but:
            assert mine._replace(pooled=()) == theirs._replace(pooled=())
            assert mine.pooled == pytest.approx(theirs.pooled, rel=1e-12)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("work", ["start", "_collect"])
@pytest.mark.parametrize("guilty", [{0}, {3}, {5}, {1, 2, 4}])
def test_a_slice_that_raises_ends_alone(
    runner: ModelRunner,
    batch: StepBatch,
    guilty: set[int],
    work: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = runner.step(batch)
    owner: Any = runner.executor if work == "start" else runner
    monkeypatch.setattr(owner, work, Raising(getattr(owner, work), guilty, error))
    found = runner.step(batch)
    same(found, expected, guilty)
    for place in guilty:
        output = found.slices[place]
        assert output == SliceOutput(fault=output.fault)
        assert output.fault == f"the engine could not compute this request ({type(error).__name__})"


def test_a_step_that_raises_once_costs_no_request(
    runner: ModelRunner, batch: StepBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = runner.step(batch)
    monkeypatch.setattr(
        runner.executor, "start", Raising(runner.executor.start, {0}, RuntimeError("for a moment"), times=1)
    )
    assert runner.step(batch) == expected


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_where_every_slice_fails_the_step_fails(
    runner: ModelRunner, batch: StepBatch, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.executor, "start", Raising(runner.executor.start, set(range(6)), error))
    with pytest.raises(type(error)):
        runner.step(batch)


def poison(runner: ModelRunner, page: int) -> None:
    """Keys and values of a page in the full layer that are no numbers."""
    cache = runner.pages.layers[1]
    for cells in (cache.k, cache.v):
        cells[page].view(torch.uint8).fill_(255)


@pytest.mark.parametrize("params", KINDS, ids=range(len(KINDS)))
def test_a_row_that_is_not_finite_ends_alone(runner: ModelRunner, params: SamplingParams) -> None:
    """The first eight tokens of each prompt are computed; then one of the pages is broken."""
    kinds = [GREEDY, params, SEEDED]
    runner.step(StepBatch(tuple(part(number, kind)._replace(stop=8) for number, kind in enumerate(kinds))))
    last = StepBatch(tuple(part(number, kind, start=8) for number, kind in enumerate(kinds)))
    expected = runner.step(last)
    assert not any(output.fault or output.failure for output in expected.slices)
    poison(runner, 1)
    found = runner.step(last)
    same(found, expected, {1})
    assert found.slices[1] == SliceOutput(fault=BROKEN_NUMBERS)


def test_a_request_that_hides_all_tokens_is_told_apart(runner: ModelRunner) -> None:
    hiding = replace(GREEDY, allowed_token_ids=(1,), bad_words=((1,),))
    (output,) = runner.step(StepBatch((part(0, hiding),))).slices
    assert output == SliceOutput(failure=ALL_HIDDEN)


NO_MEMORY = """
import resource, torch
from model.batch import Slice
from model.kernels.cpu import native
from model.sampling_params import SamplingParams
from model.step.distribution import choose

logits = torch.zeros(1, 2**24)
logits[0, 77] = 1.0
slices = [Slice(0, [0], 1, 0, 1, (), SamplingParams(top_k=1))]
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, before[1]))
try:
    choose(logits, slices, native.needed())
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, before)
logits.zero_()[0, 77] = 1.0
print(choose(logits, slices, native.needed()).tolist())
"""


def test_sampling_for_which_there_is_no_memory_raises() -> None:
    """The compiled kernel packs the candidates of top_k in memory of its own: 64 MB here, of which there are 16."""
    done = subprocess.run([sys.executable, "-c", NO_MEMORY], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["no memory to sample tokens", "[77]"]
