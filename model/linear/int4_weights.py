"""int4 on a GPU: weights in groups of 64 channels with a scale and a zero, activations in the model's format."""

import torch
from torch import Tensor

from model.checkpoint.stored import Stored
from model.kernels.cuda.layouts import DeviceWeights
from model.kernels.groups import INT4_GROUP
from model.linear.base import TINY
from model.linear.floats import WeightsOnly
from model.linear.schemes import SCHEMES

HALF = INT4_GROUP // 2


class Int4Weights(WeightsOnly):
    """A projection with int4 weights. Each byte holds two weights of a group, 32 channels apart."""

    scheme = SCHEMES["int4-weights"]

    def allocate(self, count: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> DeviceWeights:
        tables = (*count, self.n_in // INT4_GROUP, self.n_out)
        return DeviceWeights(
            "int4",
            torch.empty(*count, self.n_out, self.n_in // 2, dtype=torch.uint8, device=device),
            tuple(torch.empty(tables, dtype=dtype, device=device) for dtype in (torch.bfloat16, torch.uint8)),
        )

    def take(self, first: int, rows: Stored) -> None:
        """Store groups of 4 bits as they are, their scales in bfloat16."""
        for part in rows.pieces():
            if (own := part.four_bits(INT4_GROUP)) is None:
                super().take(first, part)
            else:
                assert self.weights is not None, "no memory has been assigned"
                self._store(self.weights, slice(first, first + len(part)), *own)
            first += len(part)

    def put(self, weights: DeviceWeights, rows: slice, values: Tensor) -> None:
        self._store(weights, rows, *quantize(values))

    def _store(self, weights: DeviceWeights, rows: slice, q: Tensor, scales: Tensor, zeros: Tensor) -> None:
        weights.values[rows] = (q[..., :HALF] | q[..., HALF:] << 4).flatten(1)
        for table, part in zip(weights.tables, (scales, zeros), strict=True):
            table[:, rows] = part.T

    def dequantize(self, weights: DeviceWeights, rows: slice) -> Tensor:
        packed = weights.values[rows].unflatten(1, (-1, HALF))  # [n, n_in/64, 32]
        q = torch.cat((packed & 15, packed >> 4), dim=2).float()
        scales, zeros = (table[:, rows].T[:, :, None].float() for table in weights.tables)
        return ((q - zeros) * scales).flatten(1)


def quantize(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize rows [n, k] float32 -> q [n, k/64, 64] and zeros [n, k/64], uint8 0..15, and scales [n, k/64] bfloat16.

    Worked example: a group from -1.0 to 2.0 has scale 0.2 (0.2002 in bfloat16) and zero 5; 0.5 becomes 7, which is 0.4.
    """
    groups = rows.unflatten(1, (-1, INT4_GROUP))
    smallest, largest = groups.amin(dim=2).clamp_(max=0.0), groups.amax(dim=2).clamp_(min=0.0)
    scales = ((largest - smallest) / 15).clamp_(min=TINY).bfloat16()
    zeros = (-smallest / scales.float()).round_().clamp_(0, 15)
    q = (groups / scales.float()[:, :, None]).round_().add_(zeros[:, :, None]).clamp_(0, 15)
    return q.to(torch.uint8), scales, zeros.to(torch.uint8)
