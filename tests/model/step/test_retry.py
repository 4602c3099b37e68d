"""A step that does not fit into memory is computed in parts, with the same bits."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from model.batch import UNKNOWN, PageTable, Slice, SliceOutput, StepBatch, StepOutput
from model.grammar.compiler import Vocabulary
from model.loading import load_from
from model.machine.helper import First
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.masks import Masks
from model.step.retry import PATIENCE, TokenLimit, in_parts
from model.step.runner import ModelRunner
from tests.model.driving import checkpoint, tiny

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


@pytest.fixture(autouse=True)
def _fresh(runner: ModelRunner) -> None:
    runner._limit = TokenLimit()


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


def without_sums(output: SliceOutput) -> SliceOutput:
    return output._replace(pooled=())


@pytest.mark.parametrize("work", ["_start", "_collect"])
@pytest.mark.parametrize("n_tokens", [1, 2, 3, 5, 8, 30])
def test_parts_give_what_the_whole_gives(
    runner: ModelRunner, batch: StepBatch, n_tokens: int, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether memory runs out when the step is launched or when its result is taken."""
    expected = runner.step(batch).slices
    assert [len(output.tokens) for output in expected] == [1, 1, 0, 0, 0, 1, 6, 2, 4, 6, 3, 1]
    assert not any(output.failure for output in expected)
    started: list[Any] = []
    start = runner._masks.start
    monkeypatch.setattr(runner._masks, "start", lambda samples: (started.append(samples), start(samples)))
    small = Small(getattr(runner, work), n_tokens)
    monkeypatch.setattr(runner, work, small)
    found = runner.step(batch).slices
    assert list(map(without_sums, found)) == list(map(without_sums, expected))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.pooled == pytest.approx(theirs.pooled, rel=1e-12)
    assert len(started) == 1
    assert small.sizes[0] == batch.n_tokens
    assert sum(size for size in small.sizes if size <= n_tokens) <= batch.n_tokens


def test_what_was_computed_in_parts_is_there_for_the_next_step(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt(0, 30)
    (expected,) = runner.step(StepBatch((part(0, tokens, 0, GREEDY),))).slices
    first = StepBatch((part(1, tokens, 0, GREEDY, stop=29),))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_start", Small(runner._start, 4))
        assert runner.step(first).slices == (SliceOutput(),)
    assert runner.step(StepBatch((part(1, tokens, 29, GREEDY),))).slices == (expected,)


def test_a_failure_in_a_part_is_the_slices_alone(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grammar allows only letters, and `allowed_token_ids` only digits."""
    stuck = replace(WRITING, allowed_token_ids=(1, 2, 3))
    draft = answer(runner, 0, WRITING, 4)
    batch = StepBatch(
        (part(0, draft, 9, stuck, n_draft=3), part(1, prompt(1), 0, stuck), part(2, prompt(2), 0, GREEDY))
    )
    expected = runner.step(batch).slices
    assert [output.failure is None for output in expected] == [False, False, True]
    monkeypatch.setattr(runner, "_start", Small(runner._start, 2))
    assert runner.step(batch).slices == expected


def test_a_token_that_does_not_fit_is_an_error(runner: ModelRunner, batch: StepBatch) -> None:
    small = Small(partial(runner._compute, before=runner._last), 0)
    limit = TokenLimit()
    with pytest.raises(torch.OutOfMemoryError):
        in_parts(batch, small, limit)
    assert small.sizes[-1] == 1
    until_one = small.sizes[: small.sizes.index(1) + 1]
    assert until_one == sorted(until_one, reverse=True)
    assert small.sizes.count(1) == len(batch.slices), "each slice is tried alone before the step fails"
    assert in_parts(batch, enough := Small(small._work, 1000), limit).slices, "size was not the cause"
    assert enough.sizes == [batch.n_tokens]


def test_what_did_not_fit_is_tried_again_after_a_while(runner: ModelRunner, batch: StepBatch) -> None:
    limit, tried = TokenLimit(), []
    for fits in [20] * PATIENCE + [100] * PATIENCE:
        small = Small(partial(runner._compute, before=runner._last), fits)
        in_parts(batch, small, limit)
        tried.append(small.sizes)
    assert tried[0][0] == batch.n_tokens
    assert max(map(max, tried[1:5])) <= 20
    failed = [sum(size > 20 for size in sizes) for sizes in tried[:PATIENCE]]
    assert 2 <= sum(map(bool, failed)) <= PATIENCE // 4
    assert tried[-1] == [batch.n_tokens]


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8",
    ],
)
def test_all_errors_for_want_of_memory(runner: ModelRunner, batch: StepBatch, message: str) -> None:
    small = Small(partial(runner._compute, before=runner._last), 20, RuntimeError(message))
    assert len(in_parts(batch, small, TokenLimit()).slices) == len(batch.slices)
    with pytest.raises(RuntimeError, match="illegal"):
        in_parts(
            batch,
            Small(partial(runner._compute, before=runner._last), 0, RuntimeError("an illegal memory access")),
            TokenLimit(),
        )


def test_the_next_step_may_follow_one_in_parts_of_which_a_slice_failed(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is launched before the host has read the sampled tokens."""
    stuck = replace(GREEDY, allowed_token_ids=(1,), min_tokens=2, stop_token_ids=(1,))
    expected = answer(runner, 1, GREEDY, 2)[-1:]
    monkeypatch.setattr(runner, "info", replace(runner.info, runs_ahead=True))
    sequences = {0: (prompt(0), stuck), 1: (prompt(1), GREEDY)}
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_start", Small(runner._start, 9))
        wait = runner.launch(StepBatch(tuple(part(n, tokens, 0, params) for n, (tokens, params) in sequences.items())))
    after = [part(n, [*tokens, UNKNOWN], 9, params) for n, (tokens, params) in sequences.items()]
    outputs = runner.launch(StepBatch(tuple(after)))
    assert [output.failure is None for output in wait().slices] == [False, True]
    assert list(outputs().slices[1].tokens) == expected


def test_a_step_under_way_is_finished_whatever_did_not_fit_since(
    runner: ModelRunner, batch: StepBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, wait = runner.step(batch), runner.launch(batch)
    with pytest.raises(torch.OutOfMemoryError):
        in_parts(batch, Small(partial(runner._compute, before=runner._last), 0), runner._limit)
    again = Small(runner._start, 1000)
    monkeypatch.setattr(runner, "_start", again)
    assert wait() == expected
    assert not again.sizes


def test_a_step_read_in_parts_while_the_next_is_in_flight_loses_no_token(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own UNKNOWN tokens are those that the step before it sampled, not those of the step after it."""
    monkeypatch.setattr(runner, "info", replace(runner.info, runs_ahead=True))
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
        if part.n_tokens > 1:
            raise torch.OutOfMemoryError(f"for {hidden}")
        return StepOutput((SliceOutput(),))

    in_parts(batch, compute, TokenLimit())
    assert len(tensors) > batch.n_tokens
