"""A step that fails, or does not fit into memory, costs no other request anything: the bits stay the same."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from model.batch import UNKNOWN, DeviceLost, PageTable, Slice, SliceOutput, StepBatch, StepOutput, StepTooLarge
from model.grammar.vocabulary import Vocabulary
from model.loading import load_from
from model.machine.helper import First
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step import retry
from model.step.masks import Masks
from model.step.retry import apart, attempt
from model.step.runner import UNLIKE, ModelRunner
from service.engine.messages import Submit, ToEngine
from service.engine.scheduling.budget import PATIENCE
from tests.engine.driving import Client
from tests.model.driving import checkpoint, run_ahead, tiny

WIDTH = 64
VOCABULARY = Vocabulary((b"<end>", *(bytes([n + 60]) for n in range(1, WIDTH))), (0,), (0,))
LETTERS = "start: /[a-z]{4,40}/"
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, logprobs=2)
SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=40, repetition_penalty=1.2)
WRITING = replace(GREEDY, grammar=LETTERS)


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


class Small:
    """A part of a step's work for which there is memory up to so many tokens."""

    def __init__(self, work: Callable[..., Any], n_tokens: int, error: Exception | None = None) -> None:
        self.sizes: list[int] = []
        self._work = work
        self._n_tokens = n_tokens
        self._error = error or torch.OutOfMemoryError()

    def __call__(self, batch: StepBatch, *more: Any, **named: Any) -> Any:
        self.sizes.append(batch.n_tokens)
        result = self._work(batch, *more, **named)  # some of it was done before memory ran out
        if batch.n_tokens > self._n_tokens:
            raise self._error
        return result


@pytest.mark.parametrize("work", ["start", "_collect"])
@pytest.mark.parametrize("n_tokens", [9, 17, 30])
def test_slices_apart_give_what_the_whole_gives(
    runner: ModelRunner, batch: StepBatch, n_tokens: int, work: str, monkeypatch: pytest.MonkeyPatch
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
    small = Small(getattr(owner, work), n_tokens)
    monkeypatch.setattr(owner, work, small)
    assert runner.step(batch).slices == expected
    assert len(started) == 1
    assert small.sizes[0] == batch.n_tokens
    assert sum(size for size in small.sizes if size <= n_tokens) == batch.n_tokens


def test_a_failure_is_that_of_its_slice_alone(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grammar allows only letters, and `allowed_token_ids` only digits."""
    stuck = replace(WRITING, allowed_token_ids=(1, 2, 3))
    draft = answer(runner, 0, WRITING, 4)
    batch = StepBatch(
        (part(0, draft, 9, stuck, n_draft=3), part(1, prompt(1), 0, stuck), part(2, prompt(2), 0, GREEDY))
    )
    expected = runner.step(batch).slices
    assert [output.failure is None for output in expected] == [False, False, True]
    monkeypatch.setattr(runner.executor, "start", Small(runner.executor.start, 9))
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


def test_a_step_that_samples_another_token_when_it_is_computed_again_ends_the_sequence(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU without fixed order of additions. The next step has used the first token."""
    run_ahead(runner, monkeypatch, runs_ahead=True, max_sequences=4)
    batch = StepBatch(tuple(part(number, prompt(number), 0, GREEDY) for number in range(3)))
    expected, collect, left = runner.step(batch).slices, runner._collect, [torch.OutOfMemoryError()]

    def fails_then_differs(batch: StepBatch, *more: Any) -> StepOutput:
        output = collect(batch, *more)
        if left:
            raise left.pop()
        ids = (item.sequence_id for item in batch.slices)
        tokens = ((item.tokens[0] + (number == 1),) for number, item in zip(ids, output.slices, strict=True))
        return StepOutput(tuple(item._replace(tokens=ids) for item, ids in zip(output.slices, tokens, strict=True)))

    monkeypatch.setattr(runner, "_collect", fails_then_differs)
    found = runner.step(batch).slices
    assert (found[0], found[1], found[2]) == (expected[0], SliceOutput(fault=UNLIKE), expected[2])


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
    monkeypatch.setattr(runner.executor, "start", small := Small(runner.executor.start, 10))
    found = Client(runner, [*script[:60], [], *script[60:]], max_step_tokens=64)
    assert (found.answers, found.logprobs, found.finished) == (expected.answers, expected.logprobs, expected.finished)
    failed = [place for place, size in enumerate(small.sizes) if size > 10]
    assert small.sizes[0] == 64
    assert small.sizes[1:4] == [32, 16, 8]
    assert 3 < len(failed) < len(small.sizes) / PATIENCE * 3 + 3


def test_a_step_that_is_taken_back_leaves_the_tokens_of_the_one_before(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ahead(runner, monkeypatch, max_sequences=1)
    expected = answer(runner, 1, GREEDY, 2)[9:]
    wait = runner.launch(StepBatch((part(1, prompt(1), 0, GREEDY),)))
    after = part(1, [*prompt(1), UNKNOWN], 9, GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(runner.executor, "start", Small(runner.executor.start, 9))
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
        patch.setattr(runner.executor, "start", Small(runner.executor.start, 9))
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
        patch.setattr(runner, "_collect", small := Small(runner._collect, 1))
        again = second()
    assert small.sizes == [2, 1, 1]
    for outputs in (again, third()):
        read = [[*tokens, *output.tokens] for tokens, output in zip(read, outputs.slices, strict=True)]
    assert read == expected


def test_an_attempt_that_failed_holds_no_memory(batch: StepBatch) -> None:
    tensors: list[weakref.ref[torch.Tensor]] = []

    def compute(part: StepBatch) -> StepOutput:
        assert all(tensor() is None for tensor in tensors), "an attempt that failed still holds tensors"
        hidden = torch.zeros(part.n_tokens)
        tensors.append(weakref.ref(hidden))
        if len(part.slices) > 1:
            raise torch.OutOfMemoryError(f"for {hidden}")
        return StepOutput((SliceOutput(),))

    apart(batch, compute)
    assert len(tensors) == 2 * (len(batch.slices) - 1), "each half but the whole"


@pytest.mark.parametrize("n", [1, 3])
def test_a_lost_device_fails_the_whole_step(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices are not tried apart: every call fails from now on."""
    calls = []

    def compute() -> StepOutput:
        calls.append(1)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(retry, "lost", lambda: True)
    batch = StepBatch(tuple(part(number, prompt(number), 0, GREEDY) for number in range(n)))
    with pytest.raises(DeviceLost, match="for this process: CUDA error: an illegal memory access"):
        attempt(compute, batch)
    assert len(calls) == 1


def test_a_device_that_is_lost_by_a_slice_fails_the_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No slice ends with a fault: all of them go on with another engine."""
    monkeypatch.setattr(retry, "lost", lambda: True)

    def compute(part: StepBatch) -> StepOutput:
        raise RuntimeError("CUDA error: unspecified launch failure")

    with pytest.raises(DeviceLost):
        apart(StepBatch((part(1, prompt(1), 0, GREEDY),)), compute)
