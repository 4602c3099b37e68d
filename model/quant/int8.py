"""int8 weights with a scale an output, int8 activations with a scale a row and group of 64 channels.

Products are exact integers within a group, groups are added in float in order: a row's result depends on no other row.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.kernels import native
from model.kernels.native import GROUP, PackedWeights
from model.norm import RMSNorm
from model.quant.base import Quantized

TINY = 1e-30
"""Rows and groups of lesser magnitudes count as zeros."""
ROWS_AT_ONCE = 4096
"""Rows of weights quantized at a time: float32 copies stay small."""


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [n, k] -> int8 [n, k] in -127..127 and scales [n] float32, each row's greatest magnitude / 127.

    Worked example: [1.0, -0.5] has scale 1/127 and becomes [127, -64] (-63.5 to the even neighbour).
    """
    parts = [_quantize(rows.float()) for rows in weight.split(ROWS_AT_ONCE)]
    rows, scales = (torch.cat(column) for column in zip(*parts, strict=True))
    return rows, scales


def _quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    most = weight.abs().amax(dim=1)
    inverse = torch.where(most > TINY, 127 / most, 0.0)
    return (weight * inverse[:, None]).round_().to(torch.int8), torch.where(most > TINY, most / 127, 0.0)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, k] float32, k a multiple of 64 -> int8 [T, k] and scales [T, k/64]; bit for bit as linear.c does it."""
    groups = x.unflatten(1, (-1, GROUP))
    most = groups.abs().amax(dim=2)  # [T, k/64]
    inverse = torch.where(most > TINY, 127 / most, 0.0)
    scales = torch.where(most > TINY, most / 127, 0.0)
    return (groups * inverse[:, :, None]).round_().flatten(1).to(torch.int8), scales


class Int8Linear(Quantized):
    """Activations are float32 outside. Without compiled kernels the same arithmetic runs in PyTorch."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.n_in, self.n_out = n_in, n_out
        self._kernels = native.kernels()
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}  # by first row, until all have come
        self._packed: PackedWeights | None = None
        self._groups: tuple[Tensor, Tensor] | None = None  # without kernels: see `_group`

    def take(self, first: int, rows: Tensor) -> None:
        self._parts[first] = quantize(rows)
        if sum(len(scales) for _, scales in self._parts.values()) < self.n_out:
            return
        parts = [self._parts[at] for at in sorted(self._parts)]
        weight, scales = (torch.cat(column) for column in zip(*parts, strict=True))
        self._parts.clear()
        if self._kernels is None:
            self._groups = _group(weight), scales
        else:
            self._packed = native.pack(weight, scales)

    def _run(self, x: Tensor, **around: Any) -> Tensor:
        assert self._kernels is not None
        assert self._packed is not None, "the weights have not come"
        return self._kernels.linear(self._packed, x, **around)

    def multiply(self, x: Tensor) -> Tensor:
        if self._kernels is not None:
            return self._run(x)
        assert self._groups is not None, "the weights have not come"
        return _multiply(x.float(), *self._groups)

    def forward(self, x: Tensor, norm: RMSNorm | None = None, onto: Tensor | None = None) -> Tensor:
        if self._kernels is None:
            return super().forward(x, norm, onto)
        scale, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        return self._run(x, norm=scale, eps=eps, onto=onto)

    def gated(self, gate_up: Tensor, onto: Tensor | None = None) -> Tensor:
        if self._kernels is None:
            return super().gated(gate_up, onto)
        return self._run(gate_up, gated=True, onto=onto)


def _group(weight: Tensor) -> Tensor:
    """weight [n, k] -> [k/64, 64, n], padded with zeros to whole groups."""
    whole = pad(weight, (0, -weight.shape[1] % GROUP))
    return whole.unflatten(1, (-1, GROUP)).permute(1, 2, 0).contiguous()


def _multiply(x: Tensor, groups: Tensor, scales: Tensor) -> Tensor:
    """What linear.c computes, in plain PyTorch: x [T, k] times groups [k/64, 64, n]."""
    rows, row_scales = quantize_rows(pad(x, (0, -x.shape[1] % GROUP)))
    total = torch.zeros(len(x), groups.shape[2])
    for g, part in enumerate(rows.split(GROUP, dim=1)):
        total.addcmul_(torch._int_mm(part.contiguous(), groups[g]).float(), row_scales[:, g : g + 1])
    return total.mul_(scales)
