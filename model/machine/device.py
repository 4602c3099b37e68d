"""The device and the number format that a model runs in, and the free memory of the device."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from model.config import VALUE_BYTES
from model.errors import OptionError, one_line
from model.machine import gpu
from model.machine.host import free_memory

DEVICES = ("auto", "cpu", "cuda")
BUILDS = "pytorch.org/get-started/locally"
DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in VALUE_BYTES}
NATIVE_FLAGS = {
    torch.bfloat16: {"avx512_bf16", "amx_bf16", "bf16"},
    torch.float16: {"avx512_fp16", "amx_fp16", "asimdhp"},
}
"""Flags in /proc/cpuinfo (x86 and ARM) of processors that compute natively in a format."""
OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
"""Parts of out-of-memory messages of CUDA, Triton, cuBLAS and PyTorch's CPU allocator, which raise RuntimeError."""


def choose_device(name: str) -> torch.device:
    """The device for --device `name`; "auto" is CUDA if there is a GPU. Raises OptionError."""
    if name not in DEVICES:
        raise OptionError(f"--device {name} is not known, choose one of: {', '.join(DEVICES)}")
    present = torch.cuda.is_available()
    if name == "cuda" and not present:
        raise OptionError(f"--device cuda: {_no_cuda()}, or use --device cpu")
    return torch.device("cuda" if present and name != "cpu" else "cpu")


def unused_gpu(name: str) -> str | None:
    """Why --device `name` is not the GPU that is here; None if it is, if there is none, or if somebody chose so."""
    if name != "auto" or torch.cuda.is_available() or gpu.hidden() or gpu.driver() is None:
        return None
    return _no_cuda()


def _no_cuda() -> str:
    """Why PyTorch finds no CUDA device, and what to do."""
    if gpu.hidden():
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} hides every GPU; change it"
    version, built = torch.__version__, torch.version.cuda
    if (driver := gpu.driver()) is None:
        return f"PyTorch {version} finds no CUDA device, and there is no NVIDIA driver; install one"
    here = f"NVIDIA's driver is {driver}"
    if built is None:
        return f"{here}, but this PyTorch, {version}, is a CPU build; install one for CUDA ({BUILDS})"
    here += f", PyTorch {version} is built for CUDA {built}"
    if not driver.serves(major := int(built.split(".")[0])):
        least = gpu.LEAST_DRIVER.get(major, "newer")
        return f"{here} and needs driver {least} or newer; update the driver, install another build ({BUILDS})"
    if not driver.reachable:
        return f"{here}, but there is no {gpu.DEVICES[0]}; give the container its GPUs (docker run --gpus all)"
    if driver.cuda is None:
        return f"{here}, but libcuda.so.1 does not load; give the container NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    return f"{here}, but it cannot use the GPU ({_init_error()}); repair that"


def _init_error() -> str:
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:
        return one_line(error)
    return "it finds no device"


def choose_dtype(name: str, own: str, device: torch.device) -> torch.dtype:
    """The format for --dtype `name`; "auto" is the checkpoint's `own` if the device computes it natively.

    If it does not, "auto" is float32 on a CPU and float16 on a GPU. Raises OptionError for an unknown name.
    """
    if name != "auto":
        if name not in DTYPES:
            raise OptionError(f"--dtype {name} is not known, choose one of: auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    dtype = DTYPES[own]
    if device.type == "cuda":
        if dtype is torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.float16
        return dtype
    return dtype if native(dtype) else torch.float32


def native(dtype: torch.dtype, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor computes natively in `dtype`."""
    if dtype is torch.float32:
        return True
    if not cpuinfo.exists():
        return False
    lines = cpuinfo.read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return not NATIVE_FLAGS[dtype].isdisjoint(flags.split())


def free_bytes(device: torch.device) -> int:
    """Free memory of the device, in bytes."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def name_of(dtype: torch.dtype) -> str:
    """PyTorch's name of a dtype, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def of_memory(error: Exception) -> bool:
    """Whether an error is for want of memory, on the host or on a device."""
    if isinstance(error, RuntimeError):  # torch.OutOfMemoryError is one
        return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)
    return isinstance(error, MemoryError)
