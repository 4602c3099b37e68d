"""Kernels in Triton for CUDA devices: one file for each family, imported only if `obstacle` returns None.

For tests they also run on a CPU, slowly, under Triton's interpreter. Set TRITON_INTERPRET=1 before such a file is
imported. `tests/model/kernels/test_triton_compiles.py` compiles all launched kernels for real devices.
"""

import logging
import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from model.errors import one_line
from model.machine.device import of_memory

log = logging.getLogger(__name__)

NEEDS = (
    "a C compiler and the headers of C and Python (gcc, libc6-dev, python3-dev) where it runs, and a TRITON_CACHE_DIR "
    "that it may write"
)
OLDEST = (8, 0)
"""The least compute capability whose tensor cores Triton uses."""


def interpreted() -> bool:
    """Whether kernels run under the interpreter, on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def obstacle(device: torch.device) -> str | None:
    """Why kernels cannot run on `device`, as a clause for a person; None if they can."""
    if find_spec("triton") is None:
        return "needs the package triton, which is not installed"
    if interpreted():
        return None
    if device.type != "cuda":
        return f"runs on a CUDA device, here it is {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        return f"needs a GPU of compute capability {OLDEST[0]}.{OLDEST[1]} or more, this one has {_dotted(capability)}"
    return try_out(device)


@cache
def try_out(device: torch.device) -> str | None:
    """Why a small kernel does not work on `device`: the error, or that its numbers are wrong. None if it works.

    Raises errors of memory as they are.
    """
    from model.kernels.cuda import norm

    ones = torch.ones(1, 16, device=device)
    try:
        right = torch.allclose(norm.rms_norm(ones, ones[0], 1e-5), ones, rtol=1e-3)
        why = None if right else "gives wrong numbers here"
    except Exception as error:  # from Triton, the compiler or the driver
        if of_memory(error):
            raise
        why = f"does not work here ({type(error).__name__}: {one_line(error)}); it needs {NEEDS}"
    if why is not None:
        log.warning("Triton %s", why)
    return why


def serves(x: Tensor) -> bool:
    """Whether kernels compute what PyTorch would for x."""
    return x.is_cuda and serve_on(x.device)


@cache
def serve_on(device: torch.device) -> bool:
    """Whether kernels compute on a device."""
    return device.type == "cuda" and obstacle(device) is None


def failed(error: Exception) -> bool:
    """Whether Triton raised the error: a kernel does not compile for this GPU, or does not fit it."""
    if find_spec("triton") is None:
        return False
    from triton import TritonError

    return isinstance(error, TritonError)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
