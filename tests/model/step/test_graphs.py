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
from model.step.executors.graphs import GraphExecutor, GraphShape, Replay, StepGraphs, buckets, shapes
from model.step.executors.torch import TorchExecutor
from model.step.packing import Columns, columns, pack
from service.engine.messages import Submit, ToEngine
from tests.engine.driving import Client
from tests.model.driving import checkpoint, tiny

CPU = torch.device("cpu")
INFO = RunnerInfo(4, (PoolSpec(5, 40), PoolSpec(None, 40)), 32, 7, 3, 64, 1, {}, runs_ahead=True)
"""Steps have one token of a sequence: all graphs decode."""
MIXED = replace(INFO, max_step_tokens=160)
NONE = torch.zeros(1, dtype=torch.int64)
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


def with_prompts(n: int, lengths: list[int], unknown: bool = False) -> StepBatch:
    """Chunks of prompts of these lengths before n sequences that decode. The last chunk does not end its prompt."""
    slices = []
    for number, length in enumerate(lengths, 100):
        n_prompt = length + (number == 99 + len(lengths))
        tables = tuple(PageTable(0, [(3 * number + block) % 40 for block in range(-(-length // 4))]) for _ in WINDOWS)
        tokens = [(number + i) % 90 for i in range(n_prompt)]
        slices.append(Slice(number, tokens, n_prompt, 0, length, tables, SamplingParams(max_tokens=30)))
    return StepBatch((*slices, *decoding(n, 17, unknown).slices))


def packed(batch: StepBatch, rows: dict[int, int] | None = None) -> PackedInputs:
    return pack(batch, INFO.page_size, WINDOWS, CPU, rows or {})


def host(batch: StepBatch, rows: dict[int, int] | None = None) -> Columns:
    return columns(batch, INFO.page_size, WINDOWS, rows or {})


def sampled_slices(inputs: PackedInputs, sampled: Tensor) -> Tensor:
    """All that the slice of each sampled row may read, [D, 14]."""
    tokens = torch.where(inputs.tokens < 0, sampled[(-1 - inputs.tokens).clamp(min=0)], inputs.tokens)
    slices: dict[int, list[int]] = {}
    for pool in inputs.pools:
        firsts = pool.table[:, 0].tolist()
        assert firsts == sorted(firsts), "tiles are found by bisection"
        for at, n_queries, start, first_key, page in pool.table.tolist():
            rows = slice(at, at + n_queries)
            n_pages = ((start + n_queries - 1) // 4 - first_key // 4 + 1) * bool(n_queries)
            pages = sum((i + 1) * p for i, p in enumerate(pool.pages[page:][:n_pages].tolist()))
            slots = sum((i + 1) * slot for i, slot in enumerate(pool.slots[rows].tolist()))
            found = [int(tokens[rows].sum()), int(inputs.positions[rows].sum())]
            found += [n_queries, start, first_key, slots, pages]
            for row in range(at, at + n_queries):
                slices.setdefault(row, []).extend(found)
    found = [slices.get(row, [0] * 14) for row in inputs.sample_rows.tolist()]
    return torch.tensor(found, dtype=torch.float32).view(-1, 14)


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
    graphs = StepGraphs(summary, INFO, 9, CPU, recorder)
    for n, length in ((9, 28), (2, 5), (3, 28), (9, 4), (1, 1), (5, 17)):
        batch = decoding(n, length)
        assert torch.equal(graphs.logits(host(batch), NONE), summary(packed(batch), NONE))  # type: ignore[arg-type]
    assert recorder.replays == [9, 2, 4, 9, 1, 8]
    assert recorder.sizes == [9, 2, 4, 1, 8]


def test_unknown_tokens_are_those_that_were_sampled() -> None:
    graphs = StepGraphs(summary, INFO, 4, CPU, Recorder())
    sampled = torch.tensor([13, 11, 12])
    found = graphs.logits(host(decoding(3, 9, unknown=True), {0: 1, 1: 2, 2: 0}), sampled)
    assert found is not None
    assert found[:, 0].tolist() == [11, 12, 13]


def test_recording_waits_for_a_pause_and_ends() -> None:
    recorder = Recorder()
    graphs = StepGraphs(summary, INFO, 8, CPU, recorder)
    assert [graphs.capture_next() for _ in range(4)] == [True, True, True, False]
    assert recorder.sizes == [8, 1, 2, 4], "the greatest first: the others fit into its memory"
    assert not graphs.capture_next()
    assert recorder.replays == []


def test_shapes_of_steps_with_prompts() -> None:
    """Rows grow by a quarter at most, for few slices and for all; where all fit into a decoding step none is needed."""
    assert shapes(4, 1) == [GraphShape(1, 1), GraphShape(2, 2), GraphShape(4, 4)]
    mixed = [shape for shape in shapes(256, 2048) if not shape.decodes]
    assert mixed[:4] == [(64, 32), (64, 63), (80, 32), (80, 79)]
    assert mixed[-4:] == [(640, 32), (640, 256), (768, 32), (768, 256)]
    assert [shape for shape in shapes(3, 40) if not shape.decodes] == [(40, 3)]


def test_a_step_with_prompts_reads_its_own_inputs() -> None:
    """Steps of chunks, of tokens of sequences that decode, of both, and after greater and lesser ones."""
    recorder = Recorder()
    graphs = StepGraphs(sampled_slices, replace(MIXED, vocab_size=14), 40, CPU, recorder)
    sampled = torch.arange(50, 90)
    for n, lengths in ((30, [20, 31, 5]), (0, [2]), (3, [30, 30]), (38, [29, 31]), (0, [9, 1, 17]), (5, [])):
        batch, rows = with_prompts(n, lengths, unknown=True), {i: n - 1 - i for i in range(n)}
        expected = sampled_slices(packed(batch, rows), sampled)
        assert torch.equal(graphs.logits(host(batch, rows), sampled), expected)  # type: ignore[arg-type]
    assert recorder.replays == [40, 32, 32, 40, 32, 8]
    assert graphs.logits(host(with_prompts(0, [30, 30, 30, 30, 30, 11])), sampled) is None, "more rows than any graph"


def test_a_step_that_only_decodes_has_a_graph_of_its_own() -> None:
    recorder = Recorder()
    graphs = StepGraphs(sampled_slices, replace(MIXED, vocab_size=14), 80, CPU, recorder)
    graphs.logits(host(decoding(60, 9)), NONE)
    assert recorder.replays == [64], "not the graph of 64 rows and 63 slices"


@pytest.mark.parametrize("failure", [torch.OutOfMemoryError, RuntimeError, Exception])
def test_where_a_recording_fails_steps_go_without(failure: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """A graph that does not fit is tried once, another failure may be one of the moment. The others are captured."""
    recorder = Recorder(max_rows=5, failure=failure)
    graphs = StepGraphs(summary, INFO, 12, CPU, recorder)
    for _ in range(3):
        assert graphs.logits(host(decoding(7, 9)), NONE) is None
        assert graphs.logits(host(decoding(12, 9)), NONE) is None
    batch = decoding(4, 9)
    assert torch.equal(graphs.logits(host(batch), NONE), summary(packed(batch), NONE))  # type: ignore[arg-type]
    while graphs.capture_next():
        pass
    assert sorted(recorder.sizes) == [1, 2, 4]
    assert len(caplog.records) == (2 if failure is torch.OutOfMemoryError else 4)
    assert all(record.message.endswith(f"{failure.__name__}: it does not fit") for record in caplog.records)


def test_a_failure_of_the_moment_costs_no_graph() -> None:
    recorder = Recorder(max_rows=3, failure=RuntimeError)
    graphs = StepGraphs(summary, INFO, 8, CPU, recorder)
    assert graphs.logits(host(decoding(4, 9)), NONE) is None
    recorder.max_rows = 100
    while graphs.capture_next():
        pass
    assert sorted(recorder.sizes) == [1, 2, 4, 8]


@pytest.mark.parametrize("greatest", [1, 4])
def test_more_than_there_is_a_graph_for(greatest: int) -> None:
    graphs = StepGraphs(summary, INFO, greatest, CPU, Recorder())
    assert graphs.logits(host(decoding(greatest + 1, 9)), NONE) is None


def test_answers_of_a_network_are_the_same_with_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's kernels with captured decoding steps give the answers of sdpa. A prompt joins later."""
    pytest.importorskip("triton")
    monkeypatch.setattr(head, "LOGIT_VALUES", 4 * 64)
    sample = sampler.sample

    def some(logits: Tensor, *more: Any, **others: Any) -> sampler.Sampled:
        assert len(logits) <= 4, "more rows than there is memory for"
        return sample(logits, *more, **others)

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
    assert recorder.replays == [4, 2, 4, 4, 1, 1], "the first step has the prompts"
    assert answers[0] == answers[1]
