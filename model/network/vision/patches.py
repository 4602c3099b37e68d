"""Pixels as rows of patches, and the rotary positions of patches in two dimensions."""

import torch
from torch import Tensor

from model.config.vision import DEVIATION, MEAN


def unfold(pixels: Tensor, side: int) -> Tensor:
    """Unfold patches of `side` x `side` pixels, row by row, channels first: [H, W, 3] -> [P, 3 * side * side]."""
    height, width, channels = pixels.shape
    grid = pixels.view(height // side, side, width // side, side, channels)
    return grid.permute(0, 2, 4, 1, 3).reshape(-1, channels * side * side)


def normalize(patches: Tensor) -> Tensor:
    """Normalize uint8 patches [n, 3 * side * side] -> float32: `(value / 255 - mean) / deviation` of its channel."""
    channels = patches.view(len(patches), 3, -1).float() / 255
    for channel, mean, deviation in zip(channels.unbind(1), MEAN, DEVIATION, strict=True):
        channel.sub_(mean).div_(deviation)  # a tensor of them would be copied to a GPU, which waits
    return channels.flatten(1)


def rotations(height: int, width: int, head_dim: int, theta: float) -> Tensor:
    """Compute cos and sin for each patch of an image of height x width patches: [P, 2, head_dim/2] float32.

    Pair i (from 0) of a head has the frequency theta^(-2i/head_dim). The even i rotate by the row of the patch, the odd
    ones by its column. The pairs of rows come first. Worked example: head_dim 8, theta 10,000 has the frequencies 1 and
    0.01 for rows, 0.1 and 0.001 for columns.
    """
    freqs = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    rows = torch.arange(height, dtype=torch.float64)[:, None] * freqs[0::2]  # [height, head_dim/4]
    columns = torch.arange(width, dtype=torch.float64)[:, None] * freqs[1::2]  # [width, head_dim/4]
    both = (rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1))
    angles = torch.cat(both, dim=-1).flatten(0, 1)  # [P, head_dim/2]
    return torch.stack((angles.cos(), angles.sin()), dim=1).float()
