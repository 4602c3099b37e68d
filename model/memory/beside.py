"""Engines beside each other on one GPU: they load one after the other, and errors of memory name the others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from model.checkpoint.files import Progress
from model.errors import MemoryLack
from model.machine.sharing import alone_on


@contextmanager
def alone(device: torch.device, n_gpus: int, progress: Progress) -> Iterator[None]:
    """No other engine loads meanwhile on the present GPU, or on the first `n_gpus` if that is not 1.

    Raises OptionError if another one loads for too long.
    """

    def waiting(pid: int) -> None:
        progress(f"waiting for process {pid}, which loads a model on the same GPU", 0.0)

    with alone_on(_names(device, n_gpus), waiting) as others:
        try:
            yield
        except MemoryLack as error:
            if not others:
                raise
            them = " and ".join(f"process {pid}" for pid in sorted(set(others)))
            raise MemoryLack(
                f"{error}. {them} may have a model on the same GPU: start that with a lower --gpu-memory-utilization "
                "than this one, whose share counts both"
            ) from error


def _names(device: torch.device, n_gpus: int) -> Sequence[str]:
    """The names of GPUs that are the same in all processes."""
    if device.type != "cuda":
        return ()
    own = torch.cuda.current_device()
    indices = (own,) if n_gpus == 1 else range(min(n_gpus, torch.cuda.device_count()))
    return [str(torch.cuda.get_device_properties(index).uuid) for index in indices]
