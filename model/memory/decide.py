"""The weight scheme and the number format of a model on a device: the engine and `noria plan` decide here. No torch."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from model.config import VALUE_BYTES
from model.errors import OptionError
from model.kernels.cpu.build import library
from model.linear import schemes
from model.linear.schemes import Scheme
from model.machine.host import KERNELS
from model.machine.processor import native_formats
from model.options import RunnerOptions
from model.sharding.shard import Shard


class Abilities(NamedTuple):
    """What a device can do: "cpu" or "cuda", the `formats` that it computes natively, and on a CPU `compiled` kernels.

    On a CPU the formats count for what PyTorch computes.
    """

    device: str
    formats: Collection[str] = tuple(VALUE_BYTES)
    compiled: bool = True


class Decision(NamedTuple):
    """`chosen` is the scheme that --quantize names, `scheme` serves for it, and the embeddings are in `dtype`."""

    chosen: Scheme
    scheme: Scheme
    dtype: str


def decide(widest: Shard, kind: str, options: RunnerOptions, here: Abilities) -> Decision:
    """How a checkpoint of this `kind` runs. All ranks decide by the `widest` part of the model.

    Raises OptionError for options that do not fit together, the model, or the device.
    """
    kind = schemes.nearest(kind, here.device, widest.config)
    chosen = schemes.choose(options.quantize, options.dtype, here.device, compiled=here.compiled, kind=kind)
    dtype = choose_dtype(chosen.own_dtype(options.dtype) or "auto", widest.config.dtype, here)
    scheme = schemes.serving(chosen, dtype, here.device)
    scheme.check_part(widest)
    return Decision(chosen, scheme, dtype)


def choose_dtype(name: str, own: str, here: Abilities) -> str:
    """The format for --dtype `name`; "auto" is the checkpoint's `own` if the device computes it natively.

    If it does not, "auto" is float32 on a CPU and float16 on a GPU. Raises OptionError for an unknown name.
    """
    if name != "auto":
        if name not in VALUE_BYTES:
            raise OptionError(f"--dtype {name} is not known, choose one of: auto, {', '.join(VALUE_BYTES)}")
        return name
    return own if own in here.formats else "float32" if here.device == "cpu" else "float16"


def planned(device: str, root: Path = Path("/")) -> Abilities:
    """What a plan takes for granted: this machine's processor and kernels, or a GPU that computes in every format."""
    if device != "cpu":
        return Abilities(device)
    return Abilities("cpu", native_formats(root), library().is_file() and os.environ.get(KERNELS) != "torch")
