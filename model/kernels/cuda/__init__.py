"""Kernels in Triton for CUDA devices: one file for each family, imported only if `obstacle` returns None.

For tests they also run on a CPU, slowly, under Triton's interpreter. Set TRITON_INTERPRET=1 before such a file is
imported. `tests/model/kernels/test_triton_compiles.py` compiles all launched kernels for real devices.
"""

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

NEEDS = (
    "a C compiler and the headers of C and Python (gcc, libc6-dev, python3-dev) where it runs, and a TRITON_CACHE_DIR "
    "that it may write"
)
# Wording: what the driver refuses to load or to launch, Triton's launcher raises as a plain RuntimeError.
OF_DRIVER = "Triton Error [CUDA]: "
OLDEST = (8, 0)
"""The least compute capability whose tensor cores Triton uses."""


def interpreted() -> bool:
    """Return whether kernels run under the interpreter, on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def obstacle(device: torch.device) -> str | None:
    """Return why kernels cannot run on `device`, as a clause for a person; None if they can."""
    if find_spec("triton") is None:
        return "needs the package triton, which is not installed"
    if interpreted():
        return None
    if device.type != "cuda":
        return f"runs on a CUDA device, here it is {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        least, this = (".".join(map(str, pair)) for pair in (OLDEST, capability))
        return f"needs a GPU of compute capability {least} or more, this one has {this}"
    return None


def serves(x: Tensor) -> bool:
    """Return whether kernels compute what PyTorch would for x."""
    return x.is_cuda and serve_on(x.device)


@cache
def serve_on(device: torch.device) -> bool:
    """Return whether kernels compute on a device."""
    return device.type == "cuda" and obstacle(device) is None


def failed(error: Exception) -> bool:
    """Return whether Triton raised the error: a kernel does not compile for this GPU, or does not fit it."""
    if find_spec("triton") is None:
        return False
    from triton import TritonError

    return isinstance(error, TritonError) or (isinstance(error, RuntimeError) and str(error).startswith(OF_DRIVER))
