"""Copies of tensors between the host and a GPU."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


def upload(arrays: Sequence[Ints], device: torch.device) -> tuple[Tensor, ...]:
    """Copy integer arrays to int64 tensors on `device`, in one asynchronous transfer."""
    sizes = [len(array) for array in arrays]
    return send(torch.from_numpy(np.concatenate(arrays)), device).split(sizes)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to `device`. The host does not wait for the copy: a GPU copies from pinned memory."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


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
