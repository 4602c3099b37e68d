"""Rotary positions (Su 2021, arXiv 2104.09864) in one internal layout: half-split.

Pair i (from 0) of a head is (x[i], x[i + head_dim/2]) and rotates by `theta^(-2i/rope_dim)` radians a position. Pairs
from rope_dim/2 on do not rotate. Checkpoints pair other values, and have their q and k rows reordered once at load.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model.config.model import ModelConfig, QueryTemperature, Rope, RopeScaling


class RopeRows(NamedTuple):
    """The rotations of the rows of a step: `rotations` [T, 2, rope_dim/2], rows of `rotation_table`.

    `q_factors` [T] float32 multiply the rotated queries; None is 1 for all.
    """

    rotations: Tensor
    q_factors: Tensor | None


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Rotations of all positions, computed once: the bits of a position do not depend on the step or the batch.

    `tables` [length, 2, head_dim/2] are those of the distinct RoPEs, `table_of_pool` names the one of each page pool.
    `q_factors` [length] are the query temperature of each position times `config.query_scale`, None if all are 1.
    """

    tables: tuple[Tensor, ...]
    table_of_pool: tuple[int, ...]
    q_factors: Tensor | None

    @classmethod
    def build(cls, config: ModelConfig, length: int, device: torch.device) -> "RopeTables":
        """Compute the tables for positions 0..length-1."""
        distinct = tuple(dict.fromkeys(config.pool_ropes))
        tables = tuple(rotation_table(rope, config.heads.rope_dim, length, device) for rope in distinct)
        of_pool = tuple(distinct.index(rope) for rope in config.pool_ropes)
        return cls(tables, of_pool, _query_factors(config, length, device))

    @property
    def device(self) -> torch.device:
        return self.tables[0].device

    def rows(self, positions: Tensor) -> tuple[RopeRows, ...]:
        """Return the rows of `positions` [T], for each page pool."""
        rotations = [table.index_select(0, positions) for table in self.tables]
        factors = None if self.q_factors is None else self.q_factors.index_select(0, positions)
        return tuple(RopeRows(rotations[i], factors) for i in self.table_of_pool)


def _query_factors(config: ModelConfig, length: int, device: torch.device) -> Tensor | None:
    temperature, scale = config.query_temperature, config.query_scale
    if temperature is None:
        return None if scale == 1.0 else torch.full((length,), scale, device=device)
    return (temperatures(temperature, length) * scale).to(device)


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Return the radians a position for each pair, [head_dim/2] float64; 0 for the pairs that do not rotate."""
    half = rope.dim // 2
    freqs = rope.theta ** (-torch.arange(half, dtype=torch.float64) / half)
    if rope.scaling is not None:
        freqs = _scale(freqs, rope.scaling, rope)
    freqs[round(rope.fraction * half) :] = 0.0
    return torch.cat((freqs, freqs.new_zeros(head_dim // 2 - half)))


def temperatures(temperature: QueryTemperature, length: int) -> Tensor:
    """Return the factor of the queries at positions 0..length-1, [length] float32."""
    windows = torch.arange(length, dtype=torch.float64).div_(temperature.original_max_position).floor_()
    return windows.log1p_().mul_(temperature.beta).add_(1.0).float()


def _scale(freqs: Tensor, scaling: RopeScaling, rope: Rope) -> Tensor:
    if scaling.kind == "linear":
        return freqs / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(freqs, scaling)
    if scaling.kind == "divisors":
        return freqs / torch.tensor(scaling.divisors, dtype=torch.float64)
    return _yarn(freqs, scaling, rope)


def _llama3(freqs: Tensor, scaling: RopeScaling) -> Tensor:
    """Blend from freqs/factor to freqs, for wavelengths from original/low to original/high positions."""
    rotations = scaling.original_max_position * freqs / (2 * math.pi)
    share = ((rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return share * freqs + (1 - share) * freqs / scaling.factor


def _yarn(freqs: Tensor, scaling: RopeScaling, rope: Rope) -> Tensor:
    """Compute frequencies by section 3.2 of arXiv 2309.00071.

    Pairs that rotate often in the trained context do not change. The frequencies of slow pairs are divided by `factor`.
    """

    def pair_with(rotations: float) -> float:
        """Return the (fractional) pair that rotates this often over the original context."""
        wavelengths = scaling.original_max_position / (rotations * 2 * math.pi)
        return rope.dim * math.log(wavelengths) / (2 * math.log(rope.theta))

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = (torch.arange(len(freqs), dtype=torch.float64) - low) / max(high - low, 0.001)
    stretch = ramp.clamp(0, 1)
    return (1 - stretch) * freqs + stretch * freqs / scaling.factor


def rotation_table(rope: Rope, head_dim: int, length: int, device: torch.device) -> Tensor:
    """Compute cos and sin of positions 0..length-1, times the scaling's magnitude: [length, 2, head_dim/2] float32.

    The angles are computed in float64. Pairs that do not rotate have the cosine 1: the magnitude is not theirs.
    """
    freqs = frequencies(rope, head_dim)
    magnitudes = torch.ones_like(freqs)
    magnitudes[: rope.dim // 2] = 1.0 if rope.scaling is None else rope.scaling.magnitude
    table = torch.empty(length, 2, len(freqs))
    for first in range(0, length, 8192):
        angles = torch.arange(first, min(first + 8192, length), dtype=torch.float64)[:, None] * freqs
        table[first : first + 8192, 0] = angles.cos() * magnitudes
        table[first : first + 8192, 1] = angles.sin() * magnitudes
    return table.to(device)


def rotate(x: Tensor, rotations: Tensor) -> Tensor:
    """Rotate the last rope_dim channels of every head of x [T, heads, head_dim] by `rotations` [T, 2, rope_dim/2].

    The result is in float32.
    """
    cos, sin = rotations[:, None].unbind(2)  # [T, 1, rope_dim/2] each
    still, turning = x.float().tensor_split((x.shape[-1] - 2 * cos.shape[-1],), dim=-1)
    first, second = turning.chunk(2, dim=-1)  # [T, heads, rope_dim/2] each
    rotated = (first * cos).addcmul_(second, sin, value=-1), (second * cos).addcmul_(first, sin)
    return torch.cat((still, *rotated), dim=-1)


def internal_order(n_rows: int, head_dim: int, rope_dim: int, rotation: str) -> Tensor | None:
    """Return the numbers of a file's q or k rows in the internal order, [n_rows]; None if the file has that order.

    The file pairs the first `rope_dim` rows of each head: row i with row i + rope_dim/2 if `rotation` is "half", row 2i
    with row 2i + 1 if it is "adjacent". Worked example: head_dim 8, rope_dim 4, "adjacent" -> 0 2 4 5 1 3 6 7.
    """
    if rotation == "half" and rope_dim == head_dim:
        return None
    pairs = torch.arange(rope_dim)
    first, second = (pairs[0::2], pairs[1::2]) if rotation == "adjacent" else pairs.tensor_split(2)
    unrotated = torch.arange(rope_dim, head_dim).tensor_split(2)
    head = torch.cat((first, unrotated[0], second, unrotated[1]))
    return (torch.arange(0, n_rows, head_dim)[:, None] + head).flatten()


def rope_last(n_rows: int, head_dim: int, rope_dim: int) -> Tensor:
    """Return the `internal_order` of heads whose last `rope_dim` rows rotate, in adjacent pairs: [n_rows].

    Worked example: head_dim 6, rope_dim 4 -> 0 1 2 4 3 5.
    """
    n_still = head_dim - rope_dim
    pairs = torch.arange(n_still, head_dim)
    head = torch.cat((torch.arange(n_still), pairs[0::2], pairs[1::2]))
    return (torch.arange(0, n_rows, head_dim)[:, None] + head).flatten()
