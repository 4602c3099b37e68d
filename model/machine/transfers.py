"""A checkpoint's tensors on their way to a GPU: from the mapped file by way of two pinned buffers that take turns."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from model.checkpoint.matrices import Matrix

STAGE_BYTES = 2**26


class Stage:
    """While the device reads one buffer, the host fills the other. `event` makes what tells that a buffer was read."""

    def __init__(self, device: torch.device, size: int = STAGE_BYTES, *, pin: bool = True, event: Any = None) -> None:
        self._device = device
        self._size = size
        self._buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=pin) for _ in range(2)]
        self._read = [(event or torch.cuda.Event)() for _ in range(2)]

    def upload(self, tensor: Tensor) -> Tensor:
        """A copy on the device, ordered with what its current stream does."""
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        source, target = (all_.view(-1).view(torch.uint8) for all_ in (tensor.contiguous(), copy))
        for part, place in zip(source.split(self._size), target.split(self._size), strict=True):
            self._buffers.reverse()
            self._read.reverse()
            self._read[0].synchronize()
            place.copy_(self._buffers[0][: len(part)].copy_(part), non_blocking=True)
            self._read[0].record()
        return copy


def uploaded(tensors: Iterable[tuple[str, Matrix]], device: torch.device) -> Iterator[tuple[str, Matrix]]:
    """The same, plain tensors on `device`. Matrices of a quantized checkpoint stay where they are."""
    if device.type != "cuda":
        yield from tensors
        return
    stage = Stage(device)
    for name, matrix in tensors:
        if isinstance(matrix, Tensor) and matrix.device.type == "cpu":
            matrix = stage.upload(matrix)
        yield name, matrix
