"""Rotary positions: hand-computed vectors, relative scores, scalings against transformers."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention.rope import RopeTables, frequencies, internal_order, rotate, rotation_table, temperatures
from model.checkpoint.rope_config import read_rope
from model.config import ModelConfig, QueryTemperature, Rope, RopeScaling
from model.errors import ModelError, OptionError
from tests.model.driving import CPU, tiny


def table(config: ModelConfig, length: int) -> Tensor:
    return rotation_table(config.rope, config.head_dim, length, CPU)


def turns(config: ModelConfig) -> list[float]:
    """Radians a position of each pair."""
    return frequencies(config.rope, config.head_dim).tolist()


def rotated(x: list[float], position: int, config: ModelConfig) -> list[float]:
    """x rotated to its position. x and the result are in adjacent pairs, as in the papers."""
    n = len(x)
    half = torch.tensor(x)[internal_order(n, n, n, "adjacent")].view(1, 1, n)
    out = rotate(half, table(config, position + 1)[position:])
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


def test_frequencies_count_pairs_from_zero() -> None:
    assert turns(tiny(head_dim=8)) == pytest.approx([1.0, 0.1, 0.01, 0.001])
    assert turns(tiny(head_dim=4, rope_theta=1e6)) == pytest.approx([1.0, 1e-3])


@pytest.mark.parametrize(("fraction", "pairs"), [(0.0, 0), (0.25, 1), (0.75, 3), (1.0, 4)])
def test_fraction_rotates_the_fastest_pairs_only(fraction: float, pairs: int) -> None:
    expected = [1.0, 0.1, 0.01, 0.001][:pairs] + [0.0] * (4 - pairs)
    assert turns(tiny(head_dim=8, rope_fraction=fraction)) == pytest.approx(expected)


def test_unrotated_pairs_do_not_move() -> None:
    x = [1.0, 2.0, 3.0, 4.0]
    moved = rotated(x, 50, tiny(head_dim=4, rope_fraction=0.5))
    assert moved[2:] == x[2:]
    assert moved[0] == pytest.approx(math.cos(50) - 2 * math.sin(50), abs=1e-5)


def test_both_layouts_of_the_file_mean_the_same() -> None:
    order = internal_order(16, 8, 8, "adjacent")  # two heads of 8
    assert order is not None
    assert order.tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert internal_order(16, 8, 8, "half") is None


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 16.0}
ORIGINAL = {"original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 4.0},
        {**LLAMA3, **ORIGINAL},
        {**YARN, **ORIGINAL},
        {**YARN, **ORIGINAL, "beta_fast": 4.0, "beta_slow": 0.5},
        {**YARN, **ORIGINAL, "mscale": 1.0, "mscale_all_dim": 1.0},
        {**YARN, **ORIGINAL, "mscale": 1.0, "mscale_all_dim": 0.0},
        {**YARN, **ORIGINAL, "mscale": 0.7, "mscale_all_dim": 1.3},
        {**YARN, **ORIGINAL, "mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 0.9},
        {**YARN, **ORIGINAL, "truncate": False},
        {**YARN, **ORIGINAL, "factor": 1.0},
    ],
    ids=lambda parameters: " ".join(f"{key}={value}" for key, value in parameters.items() if key not in ORIGINAL),
)
@pytest.mark.parametrize("part", [1.0, 0.5])
def test_scalings_agree_with_transformers(parameters: dict[str, Any], part: float) -> None:
    """Frequencies and magnitude, of a whole head and of its first half."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    raw = {"rope_parameters": {**parameters, "rope_theta": 10000.0, "partial_rotary_factor": part}}
    rope = read_rope(raw, default_theta=1.0, head_dim=32, max_position=512, max_model_len=None).rope
    assert rope.scaling is not None
    theirs = LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=32, **copy.deepcopy(raw))
    expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](theirs, CPU)
    assert rope.dim == 2 * len(expected)
    torch.testing.assert_close(frequencies(rope, 32)[: len(expected)].float(), expected)
    assert frequencies(rope, 32)[len(expected) :].tolist() == [0.0] * (16 - len(expected))
    assert rope.scaling.magnitude == pytest.approx(factor, rel=1e-6)


def test_yarn_scales_what_it_rotates() -> None:
    scaling = RopeScaling("yarn", 4.0, 64)
    x = torch.randn(1, 1, 16)
    y = rotate(x, table(tiny(head_dim=16, rope_scaling=scaling), 4)[3:])
    torch.testing.assert_close(y.norm(), x.norm() * (0.1 * math.log(4.0) + 1))
    part = rotate(x, table(tiny(head_dim=16, rope_dim=8, rope_scaling=scaling), 4)[3:])
    for unrotated in (slice(4, 8), slice(12, 16)):
        assert torch.equal(part[..., unrotated], x[..., unrotated])


# Rotating a part of a head


def test_a_part_of_a_head_has_its_own_frequencies() -> None:
    assert turns(tiny(head_dim=8, rope_dim=4)) == pytest.approx([1.0, 0.01, 0.0, 0.0])
    assert turns(tiny(head_dim=8, rope_dim=4, rope_fraction=0.5)) == pytest.approx([1.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("rotation", ["half", "adjacent"])
def test_a_part_of_a_head_rotates_as_a_head_of_that_size(rotation: str) -> None:
    """In the file the first 4 of 12 values rotate. Their products are those of a head of 4 values; 8 others stay."""
    part, whole = tiny(head_dim=12, rope_dim=4), tiny(head_dim=4)
    x = torch.randn(1, 1, 12)
    order, small = internal_order(12, 12, 4, rotation), internal_order(4, 4, 4, rotation)
    mine = rotate(x[..., order], table(part, 8)[7:])
    theirs = rotate(x[..., :4] if small is None else x[..., small], table(whole, 8)[7:])
    assert order is not None
    where = [order.tolist().index(i) for i in range(12)]
    assert torch.equal(mine[..., where][..., 4:], x[..., 4:])
    expected = theirs if small is None else theirs[..., [small.tolist().index(i) for i in range(4)]]
    torch.testing.assert_close(mine[..., where][..., :4], expected)


@pytest.mark.parametrize("dim", [3, 0, 10, 2.5])
def test_a_part_that_no_head_has(dim: Any) -> None:
    with pytest.raises(ModelError, match=f"RoPE must rotate an even number of a head's 8 values, .* rotates {dim}"):
        tiny(head_dim=8, rope_dim=dim)


# Query temperature, and tables of several pools


def test_query_temperature() -> None:
    """1 + beta ln(1 + floor(position / original)): for original 8192 and beta 0.1 by hand."""
    found = temperatures(QueryTemperature(8192, 0.1), 100_001)
    assert found[[0, 8191, 8192, 16383, 100_000]].tolist() == pytest.approx(
        [1, 1, 1.069315, 1.069315, 1.256495], abs=1e-6
    )
    assert found[:8192].tolist() == [1.0] * 8192


@pytest.mark.parametrize(("original", "beta"), [(0, 0.1), (2.5, 0.1), (8192, -1.0), (8192, None)])
def test_a_query_temperature_that_no_model_has(original: Any, beta: Any) -> None:
    with pytest.raises(ModelError, match="of the query temperature"):
        QueryTemperature(original, beta)


def test_each_pool_has_the_rope_of_its_layers() -> None:
    full = Rope(5e5, 8)
    config = tiny((5, None, 7, None), full_rope=full, query_temperature=QueryTemperature(4, 0.1))
    tables = RopeTables.build(config, 16, CPU)
    assert len(tables.tables) == 2
    assert tables.table_of_pool == (0, 1, 0)
    five, none, seven = tables.rows(torch.tensor([9, 3]))
    assert five.rotations is seven.rotations
    torch.testing.assert_close(five.rotations, table(config, 16)[[9, 3]])
    torch.testing.assert_close(none.rotations, rotation_table(full, 8, 16, CPU)[[9, 3]])
    assert none.q_factors is not None
    assert none.q_factors.tolist() == pytest.approx([1 + 0.1 * math.log(3), 1.0])
    with pytest.raises(OptionError, match="--sliding-window 6 gives all layers one window, but the model's layers"):
        config.with_window(6)
