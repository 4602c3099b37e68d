"""What `benchmarks.step` decodes and counts, without a run."""

import pytest

from benchmarks.step import decoding, n_keys
from tests.model.driving import tiny

pytestmark = pytest.mark.tools


def test_each_kind_of_step_decodes_at_least_once() -> None:
    """The first token comes from the prompt, and steps as served and part by part take turns."""
    assert decoding(1, 64, 1, 100).n_tokens == 3
    assert decoding(1, 99, 10, 100).length == 79
    with pytest.raises(SystemExit, match="--steps 50 after --context 99 decodes 101 tokens"):
        decoding(1, 99, 50, 100)


def test_a_layer_with_a_window_reads_no_more_keys() -> None:
    assert n_keys(tiny((None, 8)), 5) == 5 + 5
    assert n_keys(tiny((None, 8)), 100) == 100 + 8
