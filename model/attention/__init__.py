"""Attention backends by name. A new one is a file here and a row below; the contract test finds it."""

import torch

from model.attention.base import Attention
from model.attention.paged import PagedAttention
from model.attention.reference import ReferenceAttention
from model.attention.sdpa import SdpaAttention
from model.errors import OptionError
from model.kernels import native

BACKENDS: dict[str, type[Attention]] = {
    "paged": PagedAttention,
    "reference": ReferenceAttention,
    "sdpa": SdpaAttention,
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

    "auto" is paged on a CPU with compiled kernels for float32 `activations` or keys and values in int8, else sdpa.
    Raises OptionError for an unknown name or one that does not serve `device` or `dtype`.
    """
    if name == "auto":
        compiled = device.type == "cpu" and native.kernels() is not None
        suits = dtype is torch.int8 or (activations is torch.float32 and dtype in PagedAttention.dtypes)
        name = "paged" if compiled and (suits or deterministic) else "sdpa"
    if name not in BACKENDS:
        raise OptionError(f"--attention {name} is not known, choose one of: auto, {', '.join(BACKENDS)}")
    if name == "paged" and device.type != "cpu":
        raise OptionError(f"--attention paged runs on a CPU only, the device is {device.type}; use --attention sdpa")
    if deterministic and name != "paged":
        raise OptionError(f"--deterministic needs --attention paged (a CPU, compiled kernels), here it is {name}")
    backend = BACKENDS[name]()
    if dtype is torch.int8 and dtype not in backend.dtypes:
        raise OptionError(f"--kv-dtype int8 needs --attention paged (a CPU, compiled kernels), here it is {name}")
    if dtype not in backend.dtypes:
        known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in backend.dtypes))
        raise OptionError(f"--attention {name} keeps keys and values in {known}, not in {dtype}".replace("torch.", ""))
    return name, backend
