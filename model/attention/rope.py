"""Rotary positions (Su 2021, arXiv 2104.09864) in one internal layout: half-split.

Pair i (from 0) of a head is (x[i], x[i + head_dim/2]) and rotates by `theta^(-2i/head_dim)` radians a position.
Checkpoints that pair neighbours (x[2i], x[2i+1]) have their q and k rows reordered once at load.
"""

import math

import torch
from torch import Tensor

from model.config import ModelConfig, RopeScaling


def frequencies(config: ModelConfig) -> Tensor:
    """Radians a position for each pair, [head_dim/2] float64; 0 for the pairs that `rope_fraction` leaves unrotated.

    Only the first `round(fraction * head_dim / 2)` pairs rotate, the fastest (p-RoPE, arXiv 2410.06205).
    """
    half = config.head_dim // 2
    freqs = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    if config.rope_scaling is not None:
        freqs = _scale(freqs, config.rope_scaling, config)
    freqs[round(config.rope_fraction * half) :] = 0.0
    return freqs


def attention_factor(scaling: RopeScaling | None) -> float:
    """The factor by which yarn multiplies q and k."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


def _scale(freqs: Tensor, scaling: RopeScaling, config: ModelConfig) -> Tensor:
    if scaling.kind == "linear":
        return freqs / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(freqs, scaling)
    if scaling.kind == "divisors":
        return freqs / torch.tensor(scaling.divisors, dtype=torch.float64)
    return _yarn(freqs, scaling, config)


def _llama3(freqs: Tensor, scaling: RopeScaling) -> Tensor:
    """A blend from freqs/factor to freqs, for wavelengths from original/low to original/high positions."""
    rotations = scaling.original_max_position * freqs / (2 * math.pi)
    share = ((rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return share * freqs + (1 - share) * freqs / scaling.factor


def _yarn(freqs: Tensor, scaling: RopeScaling, config: ModelConfig) -> Tensor:
    """Frequencies by section 3.2 of arXiv 2309.00071.

    Pairs that rotate often in the trained context do not change. The frequencies of slow pairs are divided by `factor`.
    """

    def pair_with(rotations: float) -> float:
        """The (fractional) pair that rotates this often over the original context."""
        wavelengths = scaling.original_max_position / (rotations * 2 * math.pi)
        return config.head_dim * math.log(wavelengths) / (2 * math.log(config.rope_theta))

    low = max(math.floor(pair_with(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_with(scaling.beta_slow)), config.head_dim - 1)
    ramp = (torch.arange(len(freqs), dtype=torch.float64) - low) / max(high - low, 0.001)
    stretch = ramp.clamp(0, 1)
    return (1 - stretch) * freqs + stretch * freqs / scaling.factor


def rotation_table(config: ModelConfig, length: int, device: torch.device) -> Tensor:
    """cos and sin for positions 0..length-1: [length, 2, head_dim/2] float32.

    The table is computed once, in float64: the bits of a position do not depend on the step or the batch.
    """
    freqs = frequencies(config)
    factor = attention_factor(config.rope_scaling)
    table = torch.empty(length, 2, len(freqs))
    for first in range(0, length, 8192):
        angles = torch.arange(first, min(first + 8192, length), dtype=torch.float64)[:, None] * freqs
        table[first : first + 8192, 0] = angles.cos() * factor
        table[first : first + 8192, 1] = angles.sin() * factor
    return table.to(device)


def rotate(x: Tensor, rotations: Tensor) -> Tensor:
    """Every head of x [T, heads, head_dim] rotated by `rotations` [T, 2, head_dim/2], in float32; same dtype out."""
    cos, sin = rotations[:, None].unbind(2)  # [T, 1, head_dim/2] each
    first, second = x.float().chunk(2, dim=-1)  # [T, heads, head_dim/2] each
    rotated = (first * cos).addcmul_(second, sin, value=-1), (second * cos).addcmul_(first, sin)
    return torch.cat(rotated, dim=-1).to(x.dtype)


def adjacent_to_half(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder q or k rows [heads * head_dim, ...], or their numbers, from pairs (0,1),(2,3).. to half-split pairs."""
    pairs = rows.unflatten(0, (-1, head_dim // 2, 2))
    return pairs.transpose(1, 2).flatten(0, 2)
