"""Attention backends by name. To add one, add a file here and a row below. The contract test finds it."""

import logging
from collections.abc import Callable, Sequence

import torch

from model.attention.base import Attention
from model.attention.paged import PagedAttention
from model.attention.sdpa import SdpaAttention
from model.attention.triton import TritonAttention
from model.config.cache_formats import CACHE_FORMATS
from model.config.latent import Heads
from model.errors import OptionError
from model.kernels.cpu.functions import Kernels

log = logging.getLogger(__name__)

BACKENDS: dict[str, type[Attention]] = {
    "paged": PagedAttention,
    "sdpa": SdpaAttention,
    "triton": TritonAttention,
}

NARROW = {
    getattr(torch, row.dtype): f"--kv-dtype {row.name} needs {row.needs}" for row in CACHE_FORMATS.values() if row.needs
}


def choose(
    name: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    activations: torch.dtype = torch.float32,
    *,
    kernels: Kernels | None = None,
    deterministic: bool = False,
    heads: Sequence[int] | None = None,
    fault: Callable[[Attention], str | None] = lambda backend: None,
) -> tuple[str, Attention]:
    """Return the name of a backend and the backend, for keys and values in `dtype`.

    "auto" chooses paged on a CPU with compiled `kernels`, for float32 `activations` or keys and values in int8, and
    triton on a GPU that runs it. Otherwise it chooses sdpa. With `deterministic`, a row has the same bits in every
    step. `heads` are those of `ModelConfig.heads`. `fault` says what is wrong with a backend that has kernels of its
    own, None if nothing is. Where paged or triton does not serve the heads, or has a fault, "auto" is sdpa, with a
    warning.
    Raises OptionError for an unknown name, and for a backend that does not serve these options.
    """
    chosen = _auto(device, dtype, activations, kernels, deterministic) if name == "auto" else name
    try:
        backend = _made(chosen, device, dtype, kernels, deterministic)
        if heads is not None and (why := _unsuited(backend, Heads(*heads), fault)) is not None:
            raise OptionError(f"--attention {chosen} {why}{'' if name == 'auto' else '; use --attention sdpa'}")
    except OptionError as error:
        if name != "auto" or chosen == "sdpa":
            raise
        return "sdpa", _instead(error, device, dtype, deterministic)
    return chosen, backend


def _unsuited(backend: Attention, heads: Heads, fault: Callable[[Attention], str | None]) -> str | None:
    """Return why a backend does not serve these heads, as a clause; None if it does."""
    if (why := backend.unfit(heads)) is not None or isinstance(backend, SdpaAttention):
        return why
    if (why := fault(backend)) is None:
        return None
    n_heads, n_kv_heads, head_dim, _ = heads
    return f"does not work here for {n_heads} query heads and {n_kv_heads} key heads of {head_dim} ({why})"


def _instead(error: OptionError, device: torch.device, dtype: torch.dtype, deterministic: bool) -> Attention:
    """Return sdpa in place of the faulty choice of "auto". Raises OptionError with both reasons if neither serves."""
    try:
        backend = _made("sdpa", device, dtype, None, deterministic)
    except OptionError as unserved:
        raise OptionError(f"{error}, but {unserved}") from error
    log.warning("sdpa computes the attention, which takes several times as long: %s", error)
    return backend


def _auto(
    device: torch.device, dtype: torch.dtype, activations: torch.dtype, kernels: Kernels | None, deterministic: bool
) -> str:
    if device.type == "cuda":
        return "triton"
    suits = deterministic or dtype is torch.int8 or (activations is torch.float32 and dtype in PagedAttention.dtypes)
    return "paged" if kernels is not None and suits else "sdpa"


def _made(
    name: str, device: torch.device, dtype: torch.dtype, kernels: Kernels | None, deterministic: bool
) -> Attention:
    """Return the backend. Raises OptionError if it does not serve these options."""
    if name not in BACKENDS:
        raise OptionError(f"--attention {name} is not known, choose one of: auto, {', '.join(BACKENDS)}")
    if dtype in NARROW and dtype not in BACKENDS[name].dtypes:
        raise OptionError(f"{NARROW[dtype]}, here it is {name}")
    if (why := BACKENDS[name].obstacle(device, dtype)) is not None:
        raise OptionError(f"--attention {name} {why}")
    if name == "triton":
        return TritonAttention(deterministic)
    if name == "paged":
        if kernels is None:
            raise OptionError(
                "--attention paged needs the compiled kernels; build them: python -m model.kernels.cpu.build"
            )
        return PagedAttention(kernels)
    if deterministic:
        raise OptionError(f"--deterministic needs --attention paged (a CPU) or triton (a GPU), here it is {name}")
    return BACKENDS[name]()
