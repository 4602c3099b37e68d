"""Steps replayed from captures, on a fake device, which replays calls on the memory of the capture."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention.inputs import PackedInputs
from model.batch import UNKNOWN, PageTable, PoolSpec, RunnerInfo, Slice, StepBatch
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step import head, sampler
from model.step.executors.graphs import DecodeGraphs, GraphExecutor, Replay, buckets
from model.step.executors.torch import TorchExecutor
from model.step.packing import pack
from service.engine.messages import Submit, ToEngine
from tests.engine.driving import Client
from tests.model.driving import checkpoint, tiny

CPU = torch.device("cpu")
INFO = RunnerInfo(4, (PoolSpec(5, 40), PoolSpec(None, 40)), 32, 7, 3, 64, 512, {}, runs_ahead=True)
WINDOWS = [5, None]


@dataclass
class Recorder:
    """A fake capture. A replay calls the function again, and checks that its result has the same memory."""

    max_rows: int = 100
    failure: type[Exception] = torch.OutOfMemoryError
    sizes: list[int] = field(default_factory=list)
    replays: list[int] = field(default_factory=list)

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        result = compute()
        if len(result) > self.max_rows:
            raise self.failure("it does\nnot fit")
        self.sizes.append(len(result))

        def replay() -> None:
            self.replays.append(len(result))
            assert compute().data_ptr() == result.data_ptr()

        return replay


def summary(inputs: PackedInputs, sampled: Tensor) -> Tensor:
    """All that each row may read through its table, as [T, 7]. A row without queries must read nothing."""
    rows = []
    for row, (token, position) in enumerate(zip(inputs.tokens.tolist(), inputs.positions.tolist(), strict=True)):
        found = [int(sampled[-1 - token]) if token < 0 else token, position]
        for pool in inputs.pools:
            at, n_queries, start, first_key, page = pool.table[row].tolist()
            assert (int(pool.slots[row]) == -1) == (n_queries == 0)
            if n_queries:
                assert (at, n_queries, start) == (row, 1, position)
            n_pages = (start // 4 - first_key // 4 + 1) * n_queries
            found += [
                int(pool.slots[row]),
                sum((i + 1) * p for i, p in enumerate(pool.pages[page:][:n_pages].tolist())),
            ]
        rows.append([*found, n_queries])
    return torch.tensor(rows, dtype=torch.float32)


def decoding(n: int, length: int, unknown: bool = False) -> StepBatch:
    """n sequences of different lengths whose last token is still to be computed."""
    slices = []
    for number in range(n):
        stop = length + number % 3
        tokens = [*range(1, stop), UNKNOWN if unknown else 6]
        tables = tuple(
            PageTable(first, [(7 * number + block) % 40 for block in range(first, (stop - 1) // 4 + 1)])
            for first in (max(0, stop - 5) // 4, 0)
        )
        slices.append(Slice(number, tokens, 3, stop - 1, stop, tables, SamplingParams(max_tokens=30)))
    return StepBatch(tuple(slices))


def packed(batch: StepBatch, rows: dict[int, int] | None = None) -> PackedInputs:
    return pack(batch, INFO.page_size, WINDOWS, CPU, rows or {})


def test_buckets() -> None:
    assert buckets(1) == [1]
    assert buckets(3) == [1, 2, 3]
    assert buckets(20) == [1, 2, 4, 8, 12, 16, 20]
    assert buckets(256)[-4:] == [160, 192, 224, 256]
    for greatest in range(1, 300):
        sizes = buckets(greatest)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == greatest
        assert all(after <= max(4 + before, before * 5 // 4) for before, after in pairwise(sizes))


def test_a_step_reads_its_own_inputs_whatever_was_there_before() -> None:
    recorder = Recorder()
    graphs = DecodeGraphs(summary, INFO, 9, CPU, recorder)
    none = torch.zeros(1, dtype=torch.int64)
    for n, length in ((9, 28), (2, 5), (3, 28), (9, 4), (1, 1), (5, 17)):
        inputs = packed(decoding(n, length))
        assert torch.equal(graphs.logits(inputs, none), summary(inputs, none))  # type: ignore[arg-type]
    assert recorder.replays == [9, 2, 4, 9, 1, 8]
    assert recorder.sizes == [9, 2, 4, 1, 8]


def test_unknown_tokens_are_those_that_were_sampled() -> None:
    graphs = DecodeGraphs(summary, INFO, 4, CPU, Recorder())
    sampled = torch.tensor([13, 11, 12])
    inputs = packed(decoding(3, 9, unknown=True), {0: 1, 1: 2, 2: 0})
    found = graphs.logits(inputs, sampled)
    assert found is not None
    assert found[:, 0].tolist() == [11, 12, 13]


def test_recording_waits_for_a_pause_and_ends() -> None:
    recorder = Recorder()
    graphs = DecodeGraphs(summary, INFO, 8, CPU, recorder)
    assert [graphs.capture_next() for _ in range(4)] == [True, True, True, False]
    assert recorder.sizes == [8, 1, 2, 4], "the greatest first: the others fit into its memory"
    assert not graphs.capture_next()
    assert recorder.replays == []


@pytest.mark.parametrize("failure", [torch.OutOfMemoryError, RuntimeError, Exception])
def test_where_a_recording_fails_steps_go_without(failure: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(max_rows=5, failure=failure)
    graphs = DecodeGraphs(summary, INFO, 12, CPU, recorder)
    none = torch.zeros(1, dtype=torch.int64)
    assert graphs.logits(packed(decoding(7, 9)), none) is None
    assert graphs.logits(packed(decoding(12, 9)), none) is None
    inputs = packed(decoding(4, 9))
    assert torch.equal(graphs.logits(inputs, none), summary(inputs, none))  # type: ignore[arg-type]
    while graphs.capture_next():
        pass
    assert sorted(recorder.sizes) == [1, 2, 4]
    assert all(record.message.endswith(f"{failure.__name__}: it does not fit") for record in caplog.records)


@pytest.mark.parametrize("greatest", [1, 4])
def test_more_than_there_is_a_graph_for(greatest: int) -> None:
    graphs = DecodeGraphs(summary, INFO, greatest, CPU, Recorder())
    assert graphs.logits(packed(decoding(greatest + 1, 9)), torch.zeros(1, dtype=torch.int64)) is None


def test_answers_of_a_network_are_the_same_with_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's kernels with captured decoding steps give the answers of sdpa. A prompt joins later."""
    pytest.importorskip("triton")
    monkeypatch.setattr(head, "LOGIT_VALUES", 4 * 64)
    sample = sampler.sample

    def some(logits: Tensor, *more: Any) -> sampler.Sampled:
        assert len(logits) <= 4, "more rows than there is memory for"
        return sample(logits, *more)

    monkeypatch.setattr(sampler, "sample", some)
    requests: list[ToEngine] = [
        Submit(i, [(7 * i + 5 * j) % 64 for j in range(length)], SamplingParams(temperature=0.0, max_tokens=4))
        for i, length in enumerate((3, 6, 1))
    ]
    script = [requests[:2], [], requests[2:]]
    recorder = Recorder()
    answers = []
    for attention, capture in (("sdpa", None), ("triton", recorder)):
        options = RunnerOptions("", device="cpu", dtype="float32", attention=attention, max_sequences=4)
        runner = load_from(checkpoint(tiny((5, None))), options, lambda stage, done: None)
        runner.info = replace(runner.info, runs_ahead=True)
        if capture is not None:
            with torch.inference_mode():  # as `load_from` does: tensors of then are changed later
                assert isinstance(runner.executor, TorchExecutor)
                runner.executor = GraphExecutor(runner.executor, 4, capture)
        answers.append(Client(runner, script, max_sequences=4, max_step_tokens=16).answers)
    assert recorder.replays == [2, 4, 4, 1, 1]
    assert answers[0] == answers[1]
