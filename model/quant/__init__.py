"""Weight schemes for projections: one file a scheme, chosen here by name."""

from collections.abc import Mapping

import torch

from model.errors import OptionError
from model.kernels import native
from model.quant.base import Projection
from model.quant.int8 import Int8Linear
from model.quant.none import Linear

SCHEMES: Mapping[str, type[Projection]] = {"none": Linear, "int8": Int8Linear}


def choose(name: str, dtype: str, device: torch.device) -> str:
    """The scheme for `name`; "auto" is int8 on a CPU with compiled kernels unless a `dtype` is asked for, else none.

    Raises OptionError for a scheme that is not there or does not run on `device`.
    """
    if name == "auto":
        compiled = device.type == "cpu" and native.kernels() is not None
        return "int8" if compiled and dtype == "auto" else "none"
    if name not in SCHEMES:
        raise OptionError(f"--quantize {name} is not known, choose one of: auto, {', '.join(SCHEMES)}")
    if name == "int8" and device.type != "cpu":
        raise OptionError(f"--quantize int8 runs on a CPU only, the device is {device.type}; use --quantize none")
    return name
