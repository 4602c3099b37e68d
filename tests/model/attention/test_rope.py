"""Rotary positions: hand-computed vectors, relative scores, scalings against transformers."""

import math

import pytest
import torch
from torch import Tensor

from model.attention.rope import adjacent_to_half, attention_factor, frequencies, rotate, rotation_table
from model.config import ModelConfig, RopeScaling
from tests.model.driving import CPU, tiny


def rotated(x: list[float], position: int, config: ModelConfig) -> list[float]:
    """x rotated to its position. x and the result are in adjacent pairs, as in the papers."""
    n = len(x)
    half = adjacent_to_half(torch.tensor(x), n).view(1, 1, n)
    out = rotate(half, rotation_table(config, position + 1, CPU)[position:])
    return out.view(2, n // 2).T.flatten().tolist()


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([1.0, 0.0, 0.0, 1.0], [0.54030, 0.84147, -0.0099998, 0.99995]),
        ([0.0, 1.0, 1.0, 0.0], [-0.84147, 0.54030, 0.99995, 0.0099998]),
    ],
)
def test_position_one_of_head_dim_four(x: list[float], expected: list[float]) -> None:
    assert rotated(x, 1, tiny(head_dim=4)) == pytest.approx(expected, abs=1e-5)


def test_position_zero_changes_nothing() -> None:
    assert rotated([0.3, -1.0, 2.0, 5.0], 0, tiny(head_dim=4)) == pytest.approx([0.3, -1.0, 2.0, 5.0])


def test_rotation_keeps_norms() -> None:
    x = torch.randn(9, 2, 8)
    y = rotate(x, rotation_table(tiny(), 9, CPU))
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))


def score(x: Tensor, m: int, n: int, table: Tensor) -> float:
    q, k = rotate(x, table[m : m + 1]), rotate(x, table[n : n + 1])
    return float((q * k).sum())


@pytest.mark.parametrize(("m", "n"), [(1, 3), (101, 103)])
def test_score_depends_on_distance_only(m: int, n: int) -> None:
    """Angle 0.1 a position, q = k = [1, 0.5]: 1.25 cos(0.2) = 1.225."""
    angles = 0.1 * torch.arange(104.0)
    table = torch.stack((angles.cos(), angles.sin()), dim=1)[:, :, None]  # [104, 2, 1]
    assert score(torch.tensor([[[1.0, 0.5]]]), m, n, table) == pytest.approx(1.225, abs=1e-4)


def test_frequencies_count_pairs_from_zero() -> None:
    assert frequencies(tiny(head_dim=8)).tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])
    assert frequencies(tiny(head_dim=4, rope_theta=1e6)).tolist() == pytest.approx([1.0, 1e-3])


@pytest.mark.parametrize(("fraction", "pairs"), [(0.0, 0), (0.25, 1), (0.75, 3), (1.0, 4)])
def test_fraction_rotates_the_fastest_pairs_only(fraction: float, pairs: int) -> None:
    expected = [1.0, 0.1, 0.01, 0.001][:pairs] + [0.0] * (4 - pairs)
    assert frequencies(tiny(head_dim=8, rope_fraction=fraction)).tolist() == pytest.approx(expected)


def test_unrotated_pairs_do_not_move() -> None:
    x = [1.0, 2.0, 3.0, 4.0]
    moved = rotated(x, 50, tiny(head_dim=4, rope_fraction=0.5))
    assert moved[2:] == x[2:]
    assert moved[0] == pytest.approx(math.cos(50) - 2 * math.sin(50), abs=1e-5)


def test_both_layouts_of_the_file_mean_the_same() -> None:
    rows = torch.arange(16.0)[:, None]  # two heads of 8
    assert adjacent_to_half(rows, 8)[:, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]


LLAMA3 = RopeScaling("llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = RopeScaling("yarn", 4.0, 64)


@pytest.mark.parametrize("scaling", [RopeScaling("linear", 4.0), LLAMA3, YARN])
def test_scalings_agree_with_transformers(scaling: RopeScaling) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = tiny(head_dim=16, rope_scaling=scaling)
    parameters = {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "rope_theta": 10000.0,
    }
    known = {"linear": 3, "yarn": 3, "llama3": 5}[scaling.kind]
    keep = ["rope_type", "factor", "rope_theta"] + (["original_max_position_embeddings"] if known else [])
    keep += ["low_freq_factor", "high_freq_factor"] if scaling.kind == "llama3" else []
    theirs = LlamaConfig(
        hidden_size=32, num_attention_heads=2, head_dim=16, rope_parameters={name: parameters[name] for name in keep}
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling.kind](theirs, CPU)
    torch.testing.assert_close(frequencies(config).float(), expected)
    assert attention_factor(scaling) == pytest.approx(factor)


def test_yarn_scales_what_it_rotates() -> None:
    config = tiny(head_dim=16, rope_scaling=YARN)
    x = torch.randn(1, 1, 16)
    y = rotate(x, rotation_table(config, 4, CPU)[3:])
    torch.testing.assert_close(y.norm(), x.norm() * (0.1 * math.log(4.0) + 1))
