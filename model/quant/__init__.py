"""Weight schemes for projections: one file a scheme, chosen here by name."""

from collections.abc import Mapping

import torch

from model.config import ModelConfig
from model.errors import OptionError
from model.kernels import native
from model.kernels.packed import BLOCK_GROUP
from model.quant.base import Projection
from model.quant.bfloat16 import BFloat16Linear
from model.quant.blocks import BlockLinear
from model.quant.int8 import Int8Linear
from model.quant.none import Linear

SCHEMES: Mapping[str, type[Projection]] = {
    "none": Linear,
    "bfloat16": BFloat16Linear,
    "int8": Int8Linear,
    "int4": BlockLinear,
}
NAMES = ("none", "int8", "int4")
"""Those to ask for; bfloat16 is what none is on a CPU in that format."""


def runs_in_blocks(config: ModelConfig) -> bool:
    """Whether all projections have whole groups of channels."""
    widths = (config.dim, config.hidden_dim, config.n_heads * config.head_dim)
    return not any(width % BLOCK_GROUP for width in widths)


def choose(name: str, dtype: str, device: torch.device, *, quantized: bool = False) -> str:
    """The scheme for `name`. "auto" is none, or on a CPU with compiled kernels, unless a `dtype` is asked for, int8.

    A checkpoint that is `quantized` in blocks keeps them there (int4): to quantize it once more would only lose.

    Raises OptionError for a scheme that is not there or does not run on `device`.
    """
    if name == "auto":
        compiled = device.type == "cpu" and native.kernels() is not None
        if not compiled or dtype != "auto":
            return "none"
        return "int4" if quantized else "int8"
    if name not in NAMES:
        raise OptionError(f"--quantize {name} is not known, choose one of: auto, {', '.join(NAMES)}")
    if name != "none" and device.type != "cpu":
        raise OptionError(f"--quantize {name} runs on a CPU only, the device is {device.type}; use --quantize none")
    return name


def form(scheme: str, dtype: torch.dtype, device: torch.device) -> str:
    """The scheme that serves for what `choose` gave, in `dtype`."""
    return "bfloat16" if scheme == "none" and dtype is torch.bfloat16 and device.type == "cpu" else scheme


def bits(scheme: str, config: ModelConfig, block_bits: float) -> float | None:
    """Bits that a weight of a projection takes, its scales included; None where it is kept in the model's dtype.

    `block_bits` is what it takes in the checkpoint's own blocks.
    """
    return {"none": None, "bfloat16": 16, "int8": 8 + 32 / config.dim, "int4": block_bits}[scheme]
