"""Rotary positions: frequencies by hand, and scalings against transformers."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention.rope import RopeTables, frequencies, rotation_table
from model.checkpoint.configs.fields import Fields
from model.checkpoint.configs.rope import read_rope
from model.config.model import ModelConfig, QueryTemperature, Rope
from model.errors import ModelError, OptionError
from tests.model.driving import CPU, tiny


def table(config: ModelConfig, length: int) -> Tensor:
    return rotation_table(config.rope, config.head_dim, length, CPU)


@pytest.mark.parametrize(
    ("fraction", "dim", "expected"),
    [
        (0.0, 8, [0.0] * 4),
        (0.25, 8, [1.0, 0.0, 0.0, 0.0]),
        (0.75, 8, [1.0, 0.1, 0.01, 0.0]),
        (1.0, 8, [1.0, 0.1, 0.01, 0.001]),
        (0.5, 4, [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_fraction_rotates_the_fastest_pairs_only(fraction: float, dim: int, expected: list[float]) -> None:
    config = tiny(head_dim=8, rope_dim=dim, rope_fraction=fraction)
    assert frequencies(config.rope, 8).tolist() == pytest.approx(expected)


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
    fields = Fields(raw, "config.json")
    rope = read_rope(fields, default_theta=1.0, head_dim=32, max_position=512, max_model_len=None).rope
    assert rope.scaling is not None
    theirs = LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=32, **copy.deepcopy(raw))
    expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](theirs, CPU)
    assert rope.dim == 2 * len(expected)
    torch.testing.assert_close(frequencies(rope, 32)[: len(expected)].float(), expected)
    assert frequencies(rope, 32)[len(expected) :].tolist() == [0.0] * (16 - len(expected))
    assert rope.scaling.magnitude == pytest.approx(factor, rel=1e-6)


# Rotating a part of a head


@pytest.mark.parametrize("dim", [3, 0, 10, 2.5])
def test_a_part_that_no_head_has(dim: Any) -> None:
    with pytest.raises(ModelError, match=f"RoPE must rotate an even number of a head's 8 values, .* rotates {dim}"):
        tiny(head_dim=8, rope_dim=dim)


# Query temperature, and tables of several pools


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
