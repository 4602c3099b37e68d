"""Graphs of each kind of model: all sizes are captured, and their replays read memory that lives."""

from functools import partial

import pytest
import torch

from model.step.executors.graphs import GraphExecutor
from model.warming import step
from tests.gpu.simulated.counts import counts
from tests.gpu.simulated.models import KINDS, load

pytestmark = pytest.mark.simulated


@pytest.mark.parametrize("kind", KINDS)
def test_replays_read_memory_that_lives(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PyTorch checks the inputs of all kernels of a graph at its replay."""
    before = counts()
    monkeypatch.setattr(torch.cuda, "graph", partial(torch.cuda.graph, check_input_liveness=True))
    runner = load(kind)
    assert isinstance(runner.executor, GraphExecutor)
    assert not runner.executor.graphs.missing
    assert not caplog.records, "one could not be captured"
    for lengths in ([1], [1] * 5, [9], [1, 1], [1] * 8):
        runner.launch(step(runner.info, lengths))()
    torch.cuda.empty_cache()
    n_replays = counts().replays
    runner.launch(step(runner.info, [1] * 3, before=20))()
    assert counts().replays == n_replays + 1
    assert not counts().since(before).refused
