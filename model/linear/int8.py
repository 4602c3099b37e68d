"""int8 weights with a scale for each output, int8 activations with a scale for each row and group of 64 channels.

The sums within a group are exact integers. The groups are added in float32, in order. A row's result therefore depends
on no other row.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.checkpoint.matrices import Matrix, QuantizedMatrix, parts
from model.kernels.cpu.packed import int8, put_int8
from model.kernels.groups import INT8_GROUP
from model.linear.base import LARGEST, TINY, quantize_rows
from model.linear.compiled import Compiled
from model.linear.schemes import SCHEMES


def quantize(weight: Matrix) -> tuple[Tensor, Tensor]:
    """What pack.c computes, in PyTorch: weight [n, k] -> int8 [n, k] in -127..127 and scales [n] float32."""
    done = [_quantize(rows.float()) for rows in parts(weight)]
    rows, scales = (torch.cat(column) for column in zip(*done, strict=True))
    return rows, scales


def _quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    largest = weight.abs().amax(dim=1)
    if not largest.isfinite().all():
        raise ValueError("a value is not finite")
    inverse = torch.where(largest > TINY, LARGEST / largest, 0.0)
    return (weight * inverse[:, None]).round_().to(torch.int8), torch.where(largest > TINY, largest / 127, 0.0)


class Int8Linear(Compiled):
    """A projection with all weights in int8, whatever format the checkpoint has."""

    scheme = SCHEMES["int8"]

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}  # without kernels, by first row, until all are there
        self._groups: tuple[Tensor, Tensor] | None = None  # without kernels: see `_group`

    def take(self, first: int, rows: Matrix) -> None:
        own = rows.by_row(torch.int8) if isinstance(rows, QuantizedMatrix) else None
        if self._kernels is None:
            self._take_plainly(first, quantize(rows) if own is None else own)
        elif own is not None:
            self.packed = self.packed or int8(self.n_out, self.n_in)
            put_int8(self.packed, first, *own)
        else:
            self._fill(int8, first, rows)

    def _take_plainly(self, first: int, part: tuple[Tensor, Tensor]) -> None:
        self._parts[first] = part
        if sum(len(scales) for _, scales in self._parts.values()) == self.n_out:
            done = [self._parts.pop(at) for at in sorted(self._parts)]
            weight, scales = (torch.cat(column) for column in zip(*done, strict=True))
            self._groups = _group(weight), scales

    def multiply_plainly(self, x: Tensor) -> Tensor:
        assert self._groups is not None, "no weights have been loaded"
        return _multiply(x, *self._groups)


def _group(weight: Tensor) -> Tensor:
    """weight [n, k] -> [k/64, 64, n], padded with zeros to whole groups."""
    whole = pad(weight, (0, -weight.shape[1] % INT8_GROUP))
    return whole.unflatten(1, (-1, INT8_GROUP)).permute(1, 2, 0).contiguous()


def _multiply(x: Tensor, groups: Tensor, scales: Tensor) -> Tensor:
    """What linear.c computes, in plain PyTorch: x [T, k] times groups [k/64, 64, n]."""
    rows, row_scales = quantize_rows(pad(x, (0, -x.shape[1] % INT8_GROUP)), INT8_GROUP)
    total = torch.zeros(len(x), groups.shape[2])
    for g, part in enumerate(rows.split(INT8_GROUP, dim=1)):
        # Private: torch.matmul has no product of int8.
        total.addcmul_(torch._int_mm(part.contiguous(), groups[g]).float(), row_scales[:, g : g + 1])
    return total.mul_(scales)
