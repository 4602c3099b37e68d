"""Weight schemes for projections: one file a scheme, chosen here by name."""

from collections.abc import Mapping

import torch
from torch import nn

from model.config import ModelConfig
from model.errors import OptionError
from model.kernels.cpu import native
from model.kernels.cpu.packed import BLOCK_GROUP
from model.linear.base import TILE, Floats, Projection
from model.linear.bfloat16 import BFloat16Linear
from model.linear.blocks import BlockLinear
from model.linear.fp8 import Fp8Linear
from model.linear.int4_weights import Int4Weights
from model.linear.int8 import Int8Linear
from model.linear.int8_weights import Int8Weights
from model.linear.none import Linear
from model.memory.sizes import INT4_BITS

SCHEMES: Mapping[str, type[Projection]] = {
    "none": Linear,
    "bfloat16": BFloat16Linear,
    "fp8": Fp8Linear,
    "int8": Int8Linear,
    "int4": BlockLinear,
    "int8-weights": Int8Weights,
    "int4-weights": Int4Weights,
}
NAMES = tuple(name for name in SCHEMES if name != "bfloat16")
"""Those to ask for; bfloat16 is what none is on a CPU in that format."""
ON_A_GPU: Mapping[str, str] = {"int8": "int8-weights", "int4": "int4-weights"}
"""What the short names mean there; on a CPU activations are integers too."""
FP8_CAPABILITY = (8, 9)


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
    if device.type != "cuda":
        return name
    if name == "fp8" and (capability := torch.cuda.get_device_capability(device)) < FP8_CAPABILITY:
        raise OptionError(
            f"--quantize fp8 needs a GPU of compute capability 8.9 or more, this one has "
            f"{capability[0]}.{capability[1]}; use --quantize int8"
        )
    return ON_A_GPU.get(name, name)


def in_floats(scheme: str) -> bool:
    """Whether activations are in the model's format, and the head's weights too."""
    return issubclass(SCHEMES[scheme], Floats)


def fix_tiles(model: nn.Module) -> None:
    """Have all projections compute so that a row's bits depend on no other row."""
    for module in model.modules():
        if isinstance(module, Floats):
            module.fixed = True


def check_tiles(model: nn.Module, dtype: torch.dtype) -> None:
    """Raise OptionError if PyTorch's products, of a model on this CPU, give a row other bits elsewhere in its tile."""
    for module in {(part.n_in, part.n_out): part for part in model.modules() if isinstance(part, Floats)}.values():
        rows = torch.linspace(-1, 1, module.n_in).to(dtype).expand(TILE, -1)
        y = module.multiply(rows)
        if not y.eq(y[0]).all():
            raise OptionError(
                f"--deterministic: PyTorch's products of {module.n_in} channels round rows alike differently here; "
                "use --quantize int8"
            )


def form(scheme: str, dtype: torch.dtype, device: torch.device) -> str:
    """The scheme that serves for what `choose` gave, in `dtype`."""
    return "bfloat16" if scheme == "none" and dtype is torch.bfloat16 and device.type == "cpu" else scheme


def bits(scheme: str, config: ModelConfig, block_bits: float) -> float | None:
    """Bits that a weight of a projection takes, its scales included; None where it is kept in the model's dtype.

    `block_bits` is what it takes in the checkpoint's own blocks.
    """
    table = {"none": None, "bfloat16": 16, "int4": block_bits, "int4-weights": INT4_BITS}
    return table.get(scheme, 8 + 32 / config.dim)
