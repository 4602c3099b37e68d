"""The device that a model runs on, its number formats, and its free memory."""

import os
import re
from collections.abc import Mapping

import torch

from model.config.model import VALUE_BYTES
from model.errors import OptionError, one_line
from model.machine import gpu, processor
from model.machine.host import free_memory

DEVICES = ("auto", "cpu", "cuda")
BUILDS = "pytorch.org/get-started/locally"
DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in VALUE_BYTES}
# Wording: torch.OutOfMemoryError is that of CUDA's allocator alone; all others raise a plain RuntimeError.
OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
"""Parts of out-of-memory messages of CUDA, Triton, cuBLAS and PyTorch's CPU allocator, which raise RuntimeError."""


def choose_device(name: str) -> torch.device:
    """Choose the device for --device `name`; "auto" is CUDA if there is a GPU. Raises OptionError."""
    if name not in DEVICES:
        raise OptionError(f"--device {name} is not known, choose one of: {', '.join(DEVICES)}")
    usable = name != "cpu" and torch.cuda.is_available() and _lack_of_code() is None
    if name == "cuda" and not usable:
        raise OptionError(f"--device cuda: {_no_cuda()}, or use --device cpu")
    return torch.device("cuda" if usable else "cpu")


def unused_gpu(name: str) -> str | None:
    """Return why --device `name` is not the present GPU; None if it is, if there is none, or if somebody chose so."""
    if name != "auto" or choose_device(name).type == "cuda" or gpu.hidden() or gpu.driver() is None:
        return None
    return _no_cuda()


def _no_cuda() -> str:
    """Return why PyTorch uses no CUDA device, and what to do."""
    if gpu.hidden():
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} hides every GPU; change it"
    if torch.cuda.is_available() and (why := _lack_of_code()) is not None:
        return why
    if (driver := gpu.driver()) is None:
        return f"PyTorch {torch.__version__} finds no CUDA device, and there is no NVIDIA driver; install one"
    try:
        torch.cuda.init()
        why = "it finds no device"
    except (AssertionError, RuntimeError) as error:
        why = one_line(error)
    return (
        f"PyTorch {torch.__version__} cannot use the GPU of NVIDIA's driver {driver} ({why}); update the driver, "
        f"install another build ({BUILDS}), or give the container its GPUs (docker run --gpus all)"
    )


def _lack_of_code() -> str | None:
    """Return why this PyTorch cannot compute on the GPU that it finds: it has no code for it. None if it has."""
    names = torch.cuda.get_arch_list()
    if not names:
        return None
    major, minor = torch.cuda.get_device_capability()
    known = [found.groups() for name in names if (found := re.match(r"(sm|compute)_(\d+)(\d)", name))]
    # A binary (sm) runs on its own generation only, intermediate code (compute) on all later ones.
    if any((int(x), int(y)) <= (major, minor) and (kind == "compute" or int(x) == major) for kind, x, y in known):
        return None
    return (
        f"PyTorch {torch.__version__} has no code for a GPU of compute capability {major}.{minor}, only for "
        f"{', '.join(names)}; install another build ({BUILDS})"
    )


def native_formats(device: torch.device) -> frozenset[str]:
    """Return the number formats that the device computes natively."""
    if device.type == "cpu":
        return processor.native_formats()
    old = not torch.cuda.is_bf16_supported(including_emulation=False)
    return frozenset(DTYPES) - ({"bfloat16"} if old else set())


def free_bytes(device: torch.device) -> int:
    """Return the bytes of free memory of the device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def lost() -> bool:
    """Return whether the GPU serves this process no more, as after an illegal access: then every call fails."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def name_of(dtype: torch.dtype) -> str:
    """Return PyTorch's name of a dtype, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def of_memory(error: Exception) -> bool:
    """Return whether an error is for want of memory, on the host or on a device."""
    if isinstance(error, RuntimeError):  # torch.OutOfMemoryError is one
        return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)
    return isinstance(error, MemoryError)
