"""A step that fails, or does not fit into memory, costs no other request anything: the bits stay the same.

A slice that makes a step raise, or whose numbers are not finite, ends alone.
"""

import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.batch import UNKNOWN, PageTable, Slice, SliceOutput, StepBatch, StepOutput, StepTooLarge
from model.grammar.vocabulary import Vocabulary
from model.loading import load_from
from model.machine.helper import First
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.masks import Masks
from model.step.retry import attempt
from model.step.runner import ALL_HIDDEN, BROKEN_NUMBERS, ModelRunner
from service.engine.budget import PATIENCE
from service.engine.messages import Submit, ToEngine
from tests.engine.driving import Client
from tests.model.driving import checkpoint, run_ahead, tiny

ROOT = Path(__file__).parents[3]
WIDTH = 64
VOCABULARY = Vocabulary((b"<end>", *(bytes([n + 60]) for n in range(1, WIDTH))), (0,), (0,))
LETTERS = "start: /[a-z]{4,40}/"
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, logprobs=2)
SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=40, repetition_penalty=1.2)
WRITING = replace(GREEDY, grammar=LETTERS)
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
def runner() -> Iterator[ModelRunner]:
    """A runner in int8, where a row's bits depend on no other row, with a windowed and a full layer."""
    options = RunnerOptions("", device="cpu", quantize="int8", cache_memory=2**22)
    made = load_from(checkpoint(tiny((5, None))), options, lambda stage, done: None)
    made._masks = Masks(First({"vocabulary": VOCABULARY.to_json()}), WIDTH)
    made.head.last = (made._masks.step,)
    yield made
    made._masks.close()


def part(
    number: int, tokens: list[int], start: int, params: SamplingParams, stop: int | None = None, **more: int
) -> Slice:
    tables = tuple(PageTable(0, [2 * number, 2 * number + 1]) for _ in range(2))
    return Slice(number, tokens, 9, start, len(tokens) if stop is None else stop, tables, params, **more)


def prompt(number: int, length: int = 9) -> list[int]:
    return [(7 * i + 11 * number + i * i) % WIDTH for i in range(length)]


def answer(runner: ModelRunner, number: int, params: SamplingParams, n_tokens: int) -> list[int]:
    """Prompt and answer, a token a step."""
    tokens = prompt(number)
    for n in range(n_tokens):
        (output,) = runner.step(StepBatch((part(number, tokens, 0 if not n else len(tokens) - 1, params),))).slices
        tokens += output.tokens
    return tokens


@pytest.fixture(scope="module")
def batch(runner: ModelRunner) -> StepBatch:
    """Everything that a step may hold."""
    drafts = []
    for number, (params, wrong) in enumerate(
        [(GREEDY, None), (GREEDY, 11), (SEEDED, 13), (WRITING, None), (WRITING, 12)]
    ):
        tokens = answer(runner, number, params, 6)
        if wrong is not None:
            tokens[wrong] = (tokens[wrong] + 1) % WIDTH
        drafts.append(part(number, tokens, 9, params, n_draft=5))  # the token at 9 is known
    whole = [
        part(5, prompt(5), 0, replace(GREEDY, prompt_logprobs=1)),
        part(6, prompt(6), 0, replace(SEEDED, prompt_logprobs=0), stop=7),
        part(7, prompt(7), 0, replace(GREEDY, max_tokens=0, embed="mean")),
        part(8, prompt(8), 0, replace(GREEDY, max_tokens=0, embed="last")),
        part(9, prompt(9), 0, WRITING),
    ]
    ones = [part(number, answer(runner, number, GREEDY, 3), 11, GREEDY) for number in (10, 11)]
    return StepBatch((ones[0], *whole, *drafts, ones[1]))


class Failing:
    """A part of a step's work that raises after all of it was done: `fails` says for which steps."""

    def __init__(self, work: Callable[..., Any], fails: Callable[[StepBatch], bool], error: Exception) -> None:
        self.sizes: list[int] = []
        self._work, self._fails, self._error = work, fails, error

    def __call__(self, batch: StepBatch, *more: Any, **named: Any) -> Any:
        self.sizes.append(batch.n_tokens)
        result = self._work(batch, *more, **named)
        if self._fails(batch):
            raise self._error
        return result


def small(work: Callable[..., Any], n_tokens: int) -> Failing:
    """A part of a step's work for which there is memory up to so many tokens."""
    return Failing(work, lambda batch: batch.n_tokens > n_tokens, torch.OutOfMemoryError())


def raising(work: Callable[..., Any], guilty: set[int], error: Exception) -> Failing:
    """A part of a step's work that raises for the slices of some sequences."""
    return Failing(work, lambda batch: any(item.sequence_id in guilty for item in batch.slices), error)


def same(found: StepOutput, expected: StepOutput, but: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    """All outputs are equal except those at the places `but`. Sums over a prompt's chunks may be rounded."""
    for place, (mine, theirs) in enumerate(zip(found.slices, expected.slices, strict=True)):
        if place not in but:
            assert mine._replace(pooled=()) == theirs._replace(pooled=())
            assert mine.pooled == pytest.approx(theirs.pooled, rel=1e-12)


@pytest.mark.parametrize("work", ["start", "_collect"])
def test_slices_apart_give_what_the_whole_gives(
    runner: ModelRunner, batch: StepBatch, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a step of few tokens fails when it is launched or when its result is taken."""
    monkeypatch.setattr(runner, "info", replace(runner.info, max_sequences=batch.n_tokens))
    expected = runner.step(batch).slices
    assert [len(output.tokens) for output in expected] == [1, 1, 0, 0, 0, 1, 6, 2, 4, 6, 3, 1]
    assert not any(output.failure for output in expected)
    started: list[Any] = []
    start = runner._masks.start
    monkeypatch.setattr(runner._masks, "start", lambda samples: (started.append(samples), start(samples)))
    owner: Any = runner.executor if work == "start" else runner
    held = small(getattr(owner, work), 9)
    monkeypatch.setattr(owner, work, held)
    assert runner.step(batch).slices == expected
    assert len(started) == 1
    assert held.sizes[0] == batch.n_tokens
    assert sum(held.sizes[1:]) == batch.n_tokens


def test_a_failure_is_that_of_its_slice_alone(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grammar allows only letters, and `allowed_token_ids` only digits."""
    stuck = replace(WRITING, allowed_token_ids=(1, 2, 3))
    draft = answer(runner, 0, WRITING, 4)
    batch = StepBatch(
        (part(0, draft, 9, stuck, n_draft=3), part(1, prompt(1), 0, stuck), part(2, prompt(2), 0, GREEDY))
    )
    expected = runner.step(batch).slices
    assert [output.failure is None for output in expected] == [False, False, True]
    monkeypatch.setattr(runner.executor, "start", small(runner.executor.start, 9))
    assert runner.step(batch).slices == expected


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8",
    ],
)
def test_all_errors_for_want_of_memory(batch: StepBatch, message: str) -> None:
    def fail() -> StepOutput:
        raise RuntimeError(message)

    with pytest.raises(StepTooLarge):
        attempt(fail, batch, most=batch.n_tokens - 1)
    assert attempt(fail, batch, most=batch.n_tokens) is None


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_requests_of_a_step_that_does_not_fit_are_planned_again(
    runner: ModelRunner, runs_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First 10 tokens fit, then all. Prompts come in smaller chunks until enough steps were computed."""
    run_ahead(runner, monkeypatch, runs_ahead=runs_ahead, max_sequences=4)
    kinds = [GREEDY, SEEDED, replace(WRITING, prompt_logprobs=0), replace(GREEDY, max_tokens=0, embed="mean")]
    early: list[ToEngine] = [Submit(number, prompt(number, 30), params) for number, params in enumerate(kinds)]
    late = [[Submit(10 + number, prompt(number, 30), GREEDY)] for number in range(9)]
    script = [early, *[part for each in late for part in (each, *[[]] * 20)]]
    expected = Client(runner, script, max_step_tokens=64)
    assert set(expected.finished.values()) == {"length"}
    monkeypatch.setattr(runner.executor, "start", held := small(runner.executor.start, 10))
    found = Client(runner, [*script[:60], [], *script[60:]], max_step_tokens=64)
    assert (found.answers, found.logprobs, found.finished) == (expected.answers, expected.logprobs, expected.finished)
    failed = [place for place, size in enumerate(held.sizes) if size > 10]
    assert held.sizes[0] == 64
    assert held.sizes[1:4] == [32, 16, 8]
    assert 3 < len(failed) < len(held.sizes) / PATIENCE * 3 + 3


def test_a_step_that_is_taken_back_leaves_the_tokens_of_the_one_before(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ahead(runner, monkeypatch, max_sequences=1)
    expected = answer(runner, 1, GREEDY, 2)[9:]
    wait = runner.launch(StepBatch((part(1, prompt(1), 0, GREEDY),)))
    after = part(1, [*prompt(1), UNKNOWN], 9, GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(runner.executor, "start", small(runner.executor.start, 9))
        with pytest.raises(StepTooLarge):
            runner.launch(StepBatch((after, part(2, prompt(2), 0, GREEDY))))
    outputs = runner.launch(StepBatch((after,)))
    assert [*wait().slices[0].tokens, *outputs().slices[0].tokens] == expected


def test_the_next_step_may_follow_one_of_which_a_slice_failed_alone(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is launched before the host has read the sampled tokens."""
    stuck = replace(GREEDY, allowed_token_ids=(1,), min_tokens=2, stop_token_ids=(1,))
    expected = answer(runner, 1, GREEDY, 2)[-1:]
    run_ahead(runner, monkeypatch)
    sequences = {0: (prompt(0), stuck), 1: (prompt(1), GREEDY)}
    with monkeypatch.context() as patch:
        patch.setattr(runner.executor, "start", small(runner.executor.start, 9))
        wait = runner.launch(StepBatch(tuple(part(n, tokens, 0, params) for n, (tokens, params) in sequences.items())))
    after = [part(n, [*tokens, UNKNOWN], 9, params) for n, (tokens, params) in sequences.items()]
    outputs = runner.launch(StepBatch(tuple(after)))
    assert [output.failure is None for output in wait().slices] == [False, True]
    assert list(outputs().slices[1].tokens) == expected


def test_a_step_whose_slices_are_computed_apart_while_the_next_is_in_flight_loses_no_token(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own UNKNOWN tokens are those that the step before it sampled, not those of the step after it."""
    run_ahead(runner, monkeypatch)
    expected = [answer(runner, number, GREEDY, 3)[9:] for number in (1, 2)]

    def step(*more: tuple[int, ...]) -> StepBatch:
        pairs = zip((1, 2), more, strict=True)
        return StepBatch(tuple(part(n, [*prompt(n), *known], 9 + len(known) - 1, GREEDY) for n, known in pairs))

    for number in (1, 2):
        runner.step(StepBatch((part(number, prompt(number), 0, GREEDY, stop=8),)))
    first = runner.launch(step((), ()))
    second = runner.launch(step((UNKNOWN,), (UNKNOWN,)))
    read = [list(output.tokens) for output in first().slices]
    third = runner.launch(step(*((tokens[0], UNKNOWN) for tokens in read)))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_collect", held := small(runner._collect, 1))
        again = second()
    assert held.sizes == [2, 1, 1]
    for outputs in (again, third()):
        read = [[*tokens, *output.tokens] for tokens, output in zip(read, outputs.slices, strict=True)]
    assert read == expected


def test_an_attempt_that_failed_holds_no_memory(batch: StepBatch) -> None:
    tensors: list[weakref.ref[torch.Tensor]] = []

    def compute() -> StepOutput:
        hidden = torch.zeros(batch.n_tokens)
        tensors.append(weakref.ref(hidden))
        raise torch.OutOfMemoryError(f"for {hidden}")

    assert attempt(compute, batch) is None
    assert [tensor() for tensor in tensors] == [None]


def first(number: int, params: SamplingParams) -> Slice:
    """The whole prompt of a sequence."""
    return part(number, prompt(number), 0, params)


@pytest.fixture
def kinds() -> StepBatch:
    return StepBatch(tuple(first(number, params) for number, params in enumerate([*KINDS, GREEDY])))


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("work", ["start", "_collect"])
@pytest.mark.parametrize("guilty", [{3}, {1, 2, 4}])
def test_a_slice_that_raises_ends_alone(
    runner: ModelRunner,
    kinds: StepBatch,
    guilty: set[int],
    work: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = runner.step(kinds)
    owner: Any = runner.executor if work == "start" else runner
    monkeypatch.setattr(owner, work, raising(getattr(owner, work), guilty, error))
    found = runner.step(kinds)
    same(found, expected, guilty)
    for place in guilty:
        output = found.slices[place]
        assert output == SliceOutput(fault=output.fault)
        assert output.fault == f"the engine could not compute this request ({type(error).__name__})"


def test_a_step_that_raises_once_costs_no_request(
    runner: ModelRunner, kinds: StepBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = runner.step(kinds)
    times = [1]
    monkeypatch.setattr(
        runner.executor, "start", Failing(runner.executor.start, lambda _: bool(times and times.pop()), RuntimeError())
    )
    assert runner.step(kinds) == expected


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_where_every_slice_fails_the_step_fails(
    runner: ModelRunner, kinds: StepBatch, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.executor, "start", raising(runner.executor.start, set(range(6)), error))
    with pytest.raises(type(error)):
        runner.step(kinds)


def poison(runner: ModelRunner, page: int) -> None:
    """Keys and values of a page in the full layer that are no numbers."""
    cache = runner._pools.layers[1]
    for cells in (cache.k, cache.v):
        cells[page].view(torch.uint8).fill_(255)


@pytest.mark.parametrize("params", KINDS, ids=range(len(KINDS)))
def test_a_row_that_is_not_finite_ends_alone(runner: ModelRunner, params: SamplingParams) -> None:
    """The first eight tokens of each prompt are computed; then one of the pages is broken."""
    kinds = [GREEDY, params, SEEDED]
    runner.step(StepBatch(tuple(first(number, kind)._replace(stop=8) for number, kind in enumerate(kinds))))
    last = StepBatch(tuple(first(number, kind)._replace(start=8) for number, kind in enumerate(kinds)))
    expected = runner.step(last)
    assert not any(output.fault or output.failure for output in expected.slices)
    poison(runner, 2)
    found = runner.step(last)
    same(found, expected, {1})
    assert found.slices[1] == SliceOutput(fault=BROKEN_NUMBERS)


def test_a_request_that_hides_all_tokens_is_told_apart(runner: ModelRunner) -> None:
    hiding = replace(GREEDY, allowed_token_ids=(1,), bad_words=((1,),))
    (output,) = runner.step(StepBatch((first(0, hiding),))).slices
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
