"""Pseudo-random numbers as a function of (seed, choice, output index, token): there is no generator with a state."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.machine.transfers import send


def noise_keys(seeds: Sequence[int], choices: Sequence[int], indices: Sequence[int]) -> NDArray[np.uint64]:
    """Return one 64-bit key for each (seed, choice, output index): splitmix64 over the three, chained."""
    state = np.zeros(len(seeds), dtype=np.uint64)
    for words in (seeds, choices, indices):
        state = _mix(state ^ np.array(words, dtype=np.int64).view(np.uint64))
    return state


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Compute splitmix64 (Steele, Lea, Flood 2014); arithmetic wraps at 2^64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def noise(keys: NDArray[np.uint64], n_tokens: int, device: torch.device) -> Tensor:
    """Return uniforms [n, n_tokens] float32 strictly between 0 and 1: a 32-bit SplitMix stream a key, a number a token.

    The key's halves are the stream's start and step; the mixing constants are Chris Wellons' lowbias32.
    """
    words = torch.from_numpy(keys.view(np.int32).reshape(-1, 2))  # [n, 2]
    halves = send(words, device)
    x = torch.arange(n_tokens, dtype=torch.int32, device=device) * (halves[:, 1:] | 1) + halves[:, :1]
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
        x.bitwise_xor_((x >> shift).bitwise_and_((1 << (32 - shift)) - 1)).mul_(factor)
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
    # 23 bits: more would round to 1, whose logarithm is 0.
    return (x >> 9).bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
