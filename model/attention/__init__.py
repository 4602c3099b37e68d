"""Attention backends by name. A new one is a file here and a row below; the contract test finds it."""

import torch

from model.attention.base import Attention
from model.attention.paged import PagedAttention
from model.attention.reference import ReferenceAttention
from model.attention.sdpa import SdpaAttention
from model.attention.triton import TritonAttention
from model.attention.varlen import VarlenAttention
from model.errors import OptionError
from model.kernels.cpu import native
from model.linear.schemes import CACHE_FORMATS

BACKENDS: dict[str, type[Attention]] = {
    "paged": PagedAttention,
    "reference": ReferenceAttention,
    "sdpa": SdpaAttention,
    "triton": TritonAttention,
    "varlen": VarlenAttention,
}
ON_CUDA = ("triton", "varlen")
"""What serves there, best first, before sdpa."""

NARROW = {
    getattr(torch, kept.dtype): f"--kv-dtype {kept.name} needs {kept.needs}"
    for kept in CACHE_FORMATS.values()
    if kept.needs
}


def choose(
    name: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    activations: torch.dtype = torch.float32,
    *,
    deterministic: bool = False,
) -> tuple[str, Attention]:
    """The backend called `name` for keys and values in `dtype`, and its name.

    "auto" is paged on a CPU with compiled kernels for float32 `activations` or keys and values in int8; triton or
    varlen on a CUDA device where they run; else sdpa. With `deterministic` a row has the same bits in any step.
    Raises OptionError for an unknown name or one that does not serve `device` or `dtype`, or is not deterministic.
    """
    if name == "auto":
        name = _auto(device, dtype, activations, deterministic)
    if name not in BACKENDS:
        raise OptionError(f"--attention {name} is not known, choose one of: auto, {', '.join(BACKENDS)}")
    if dtype in NARROW and dtype not in BACKENDS[name].dtypes:
        raise OptionError(f"{NARROW[dtype]}, here it is {name}")
    if (why := BACKENDS[name].obstacle(device, dtype)) is not None:
        raise OptionError(f"--attention {name} {why}")
    if not deterministic:
        return name, BACKENDS[name]()
    if name not in ("paged", "triton"):
        raise OptionError(f"--deterministic needs --attention paged (a CPU) or triton (a GPU), here it is {name}")
    return name, TritonAttention(deterministic=True) if name == "triton" else BACKENDS[name]()


def _auto(device: torch.device, dtype: torch.dtype, activations: torch.dtype, deterministic: bool) -> str:
    if device.type == "cuda":
        return next((name for name in ON_CUDA if BACKENDS[name].obstacle(device, dtype) is None), "sdpa")
    suits = deterministic or dtype is torch.int8 or (activations is torch.float32 and dtype in PagedAttention.dtypes)
    return "paged" if native.kernels() is not None and suits else "sdpa"
