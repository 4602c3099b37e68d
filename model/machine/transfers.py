"""Copies of tensors between the host and a GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]

STAGING_BYTES = 2**26


class StagingBuffers:
    """Two pinned buffers that alternate: the host fills one while the device reads the other.

    `event` makes a CUDA event, which records that a buffer was read.
    """

    def __init__(self, device: torch.device, size: int = STAGING_BYTES, *, pin: bool = True, event: Any = None) -> None:
        self._device = device
        self._size = size
        self._buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=pin) for _ in range(2)]
        self._read = [(event or torch.cuda.Event)() for _ in range(2)]

    def upload(self, tensor: Tensor) -> Tensor:
        """A copy on the device, in the order of its current stream."""
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        source, target = (all_.view(-1).view(torch.uint8) for all_ in (tensor.contiguous(), copy))
        for part, place in zip(source.split(self._size), target.split(self._size), strict=True):
            self._buffers.reverse()
            self._read.reverse()
            self._read[0].synchronize()
            place.copy_(self._buffers[0][: len(part)].copy_(part), non_blocking=True)
            self._read[0].record()
        return copy


def uploader(device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function that copies a tensor from the host to `device`; on a CPU it returns the tensor itself."""
    return StagingBuffers(device).upload if device.type == "cuda" else lambda tensor: tensor


def upload(arrays: Sequence[Ints], device: torch.device) -> tuple[Tensor, ...]:
    """Integer arrays as int64 tensors on `device`, in one asynchronous transfer."""
    sizes = [len(array) for array in arrays]
    return staged(torch.from_numpy(np.concatenate(arrays)), device).to(device, non_blocking=True).split(sizes)


def staged(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor in memory that `device` can copy from while the host continues."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


class Fetch:
    """An asynchronous copy of a tensor to the host. `wait` does not wait for work that was queued after it."""

    def __init__(self, tensor: Tensor) -> None:
        self._host, self._arrived = tensor, None
        if tensor.device.type == "cuda":
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def wait(self) -> Tensor:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host
