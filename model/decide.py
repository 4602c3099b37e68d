"""How a model runs on a device: the engine and `noria plan` decide here, from the same facts. No torch."""

import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from model.checkpoint.quantized.config import OwnBits
from model.config.cache_formats import CacheFormat, cache_format
from model.config.model import VALUE_BYTES, ModelConfig
from model.errors import OptionError
from model.kernels.cpu.build import fingerprint, library
from model.linear import schemes
from model.linear.schemes import Scheme, of_encoder
from model.machine.host import KERNELS
from model.machine.processor import native_formats
from model.options import RunnerOptions
from model.sharding.layout import Layout, RankPlace
from model.sharding.shard import Shard, shard_of
from model.sharding.stages import StoredBits


class Abilities(NamedTuple):
    """A device's abilities: "cpu" or "cuda", the `formats` that it computes natively, and on a CPU `compiled` kernels.

    On a CPU the formats count for what PyTorch computes.
    """

    device: str
    formats: Collection[str] = tuple(VALUE_BYTES)
    compiled: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """The choices that the options leave open and that need no device: all ranks make the same.

    `config` has the windows that the model is served with. `chosen` is the scheme that --quantize names, `scheme` the
    one that serves for it, `draft` that of the copy that drafts, if there is one. The embeddings are in
    `dtype`, the values between layers in `activations`, keys and values in `cache`. `bits` are those of the weights.
    """

    config: ModelConfig
    chosen: Scheme
    scheme: Scheme
    draft: Scheme | None
    dtype: str
    activations: str
    cache: CacheFormat
    bits: StoredBits

    def shard(self, place: RankPlace) -> Shard:
        """Return the rank's shard at `place`."""
        return shard_of(self.config, place, self.bits)


def decide(
    config: ModelConfig,
    kind: str,
    own_bits: OwnBits,
    options: RunnerOptions,
    here: Abilities,
    layout: Layout | None = None,
) -> Decision:
    """Decide how a checkpoint of this `kind`, whose own weights have `own_bits`, runs in the `layout` of the options.

    The widest part of the model decides. Raises OptionError for options that do not fit together, the model, or the
    device.
    """
    config = config.with_window(options.sliding_window).with_softmax_scale(options.softmax_scale)
    widest = shard_of(config, (layout or options.layout).place(0))
    kind = schemes.nearest(kind, here.device, widest.config)
    chosen = schemes.choose(options.quantize, options.dtype, here.device, compiled=here.compiled, kind=kind)
    dtype = choose_dtype(chosen.own_dtype(options.dtype) or "auto", widest.config.dtype, here)
    scheme = schemes.serving(chosen, dtype, here.device, compiled=here.compiled)
    if options.deterministic:
        check_deterministic(scheme, here, dtype)
    if config.latent is not None and "float16" in (dtype, options.dtype):
        raise OptionError(
            "a model with latent attention overflows float16: its hidden states reach more than 65,504; choose "
            "--dtype bfloat16 or --dtype float32"
        )
    scheme.check_part(widest)
    activations = "float32" if scheme.compiled else dtype
    bits = stored_bits(config, scheme, dtype, own_bits)
    draft = choose_draft(options, scheme, widest) if options.draft == "self" else None
    return Decision(config, chosen, scheme, draft, dtype, activations, cache_format(options.kv_dtype, dtype), bits)


def choose_draft(options: RunnerOptions, scheme: Scheme, shard: Shard) -> Scheme:
    """Return the scheme of the copy of the weights that drafts. Raises OptionError where it could not save time."""
    narrow = schemes.SCHEMES["int4"]
    if not scheme.compiled:
        raise OptionError("--draft self needs weights in the compiled kernels of a CPU; leave it out")
    if (scheme.value_bits or 0) < 16:  # with 8 bits a pass takes 0.7 to 0.85 of a step: docs/log/scheduling.md
        raise OptionError(
            f"--draft self needs weights of 16 bits, --quantize {scheme.quantize} has fewer; leave it out"
        )
    if shard.place.layout.size > 1:
        raise OptionError(f"--draft self needs one rank, the layout is {shard.place.layout.name}; leave it out")
    narrow.check_width(shard.config.dim)
    if not narrow.fits(shard.config):
        raise OptionError(
            f"--draft self needs projections of multiples of {narrow.multiple} channels, which this model does not have"
        )
    return narrow


def check_deterministic(scheme: Scheme, here: Abilities, dtype: str) -> None:
    """Raise OptionError where PyTorch would compute on a CPU: the bits of a row depend there on the rows beside it."""
    if here.device == "cpu" and not scheme.compiled:
        build = "" if here.compiled else "build the compiled kernels (python -m model.kernels.cpu.build), then "
        raise OptionError(
            f"--deterministic is not for what PyTorch computes on a CPU, here in {dtype}: its products round a row "
            f"differently beside other rows; {build}choose --quantize int8, --quantize int4 or --dtype bfloat16, whose "
            "bits are the same in any step"
        )


def choose_dtype(name: str, own: str, here: Abilities) -> str:
    """Choose the format for --dtype `name`; "auto" is the checkpoint's `own` if the device computes it natively.

    If it does not, "auto" is float32 on a CPU and float16 on a GPU. Raises OptionError for an unknown name.
    """
    if name != "auto":
        if name not in VALUE_BYTES:
            raise OptionError(f"--dtype {name} is not known, choose one of: auto, {', '.join(VALUE_BYTES)}")
        return name
    return own if own in here.formats else "float32" if here.device == "cpu" else "float16"


def planned(device: str, root: Path = Path("/")) -> Abilities:
    """Return the abilities that a plan assumes: this machine's CPU and kernels, or a GPU with every format."""
    if device != "cpu":
        return Abilities(device)
    built = library().is_file() and fingerprint().encode() in library().read_bytes()  # from these sources
    return Abilities("cpu", native_formats(root), built and os.environ.get(KERNELS) != "torch")


def stored_bits(config: ModelConfig, scheme: Scheme, dtype: str, own_bits: OwnBits = None) -> StoredBits:
    """Return the bits of weights: projections in `scheme`, with the checkpoint's `own_bits`, others in `dtype`.

    A compiled scheme quantizes the output head too.
    """
    plain = VALUE_BYTES[dtype] * 8
    layers, head = (bits(config.dim, own_bits) or plain for bits in (scheme.bits, scheme.head_bits))
    return StoredBits(layers, plain, head if scheme.compiled else plain, encoder_bytes(config, scheme, dtype) * 8)


def encoder_bytes(config: ModelConfig, scheme: Scheme, dtype: str) -> int:
    """Return the bytes of the weights of the encoder of images or audio, 0 if there is none."""
    if config.encoder is None:
        return 0
    bits = of_encoder(scheme).bits(config.encoder.dim) or VALUE_BYTES[dtype] * 8
    return math.ceil(config.encoder.n_parameters(config.dim) * bits / 8)
