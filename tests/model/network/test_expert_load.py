"""The counts of tokens that each expert computes, from the runner."""

from pathlib import Path

import pytest

from model.batch import PageTable, Slice, StepBatch
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from tests.model.driving import EXPERTS, checkpoint, tiny


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_every_token_counts_once_for_each_expert_that_it_uses(quantize: str, tmp_path: Path) -> None:
    """Layer 0 is dense. Tokens that were computed at start, to warm up, do not count."""
    config = tiny((None, None, None), dim=64, **{**EXPERTS, "expert_hidden_dim": 64})
    options = RunnerOptions(model=str(tmp_path), device="cpu", quantize=quantize, dtype="float32", max_model_len=64)
    runner = load_from(checkpoint(config), options, lambda stage, done: None)
    assert runner.expert_tokens == ((), (0,) * 5, (0,) * 5)
    tables = tuple(PageTable(0, range(2)) for _ in runner.info.pools)
    for start, stop in ((0, 7), (7, 8)):
        runner.step(StepBatch((Slice(0, [*range(stop)], 7, start, stop, tables, SamplingParams(max_tokens=4)),)))
    dense, *sparse = runner.expert_tokens
    assert dense == ()
    assert [sum(layer) for layer in sparse] == [2 * 8, 2 * 8]


def test_a_dense_network_counts_nothing(tmp_path: Path) -> None:
    options = RunnerOptions(model=str(tmp_path), device="cpu", dtype="float32", max_model_len=64)
    assert load_from(checkpoint(tiny()), options, lambda stage, done: None).expert_tokens == ()
