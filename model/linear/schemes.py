"""The facts of all weight schemes and formats of keys and values. No torch: the CLI and `noria plan` read them too."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from model.checkpoint.quantized.config import Fp4, OwnBits
from model.config.model import ModelConfig
from model.errors import OptionError
from model.kernels.groups import BLOCK_GROUP, INT4_GROUP
from model.sharding.shard import Shard, fitting, shard_of


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to store the weights of projections and to multiply by them.

    - `quantize` is the value of --quantize that chooses it, where the device allows it.
    - `layout` names how the weights are stored: one of kernels/cpu/packed.py if it is `compiled`, else one of
      kernels/cuda/layouts.py.
    - A weight takes `value_bits`, or the model's own format where that is None. Each `group` of channels, or with
      group 0 each output, takes `scale_bits` more (scales, minima, zeros). With `keeps_blocks` the blocks of a GGUF
      stay as they are, and their bits count instead.
    - `compiled`: it runs in the compiled kernels of a CPU, on float32 activations, and quantizes the output head too.
      A row's bits depend on no other row then (docs/determinism.md). It keeps 4-bit floats of a checkpoint.
      All others run in PyTorch and on a GPU in Triton, on activations in the model's format.
    - A projection's input channels must be a multiple of `multiple`.
    """

    name: str
    quantize: str
    layout: str
    value_bits: int | None
    scale_bits: int = 0
    group: int = 0
    keeps_blocks: bool = False
    compiled: bool = False
    multiple: int = 1

    def bits(self, dim: int, own: OwnBits = None) -> float | None:
        """Return the bits of a weight, its share of the scales included; None for the model's own format.

        `own` are those of the checkpoint. Worked example: int8 with dim 4096 takes 8 + 32 / 4096 bits, int4 on a GPU
        4 + 24 / 64.
        """
        if self.value_bits is None:
            return None
        bits = self.value_bits + self.scale_bits / (self.group or dim)
        if isinstance(own, Fp4):
            return own.share * own.bits + (1 - own.share) * bits if self.compiled else bits
        return own if self.keeps_blocks and own is not None else bits

    def head_bits(self, dim: int, own: OwnBits = None) -> float | None:
        """Return the same for the output head, where the scheme quantizes it."""
        if isinstance(own, Fp4):
            own = replace(own, share=1.0) if own.head else None
        return self.bits(dim, own)

    def own_dtype(self, dtype: str) -> str | None:
        """Return the format for --dtype `dtype` of unquantized tensors; None stands for the model's own.

        The embeddings are in it, and by default keys and values. A compiled scheme does not compute in it.
        """
        return ("bfloat16" if self.compiled else None) if dtype == "auto" else dtype

    def adapter_dtype(self, dtype: str) -> str:
        """Return the format of LoRA adapters over these weights, where activations are otherwise in `dtype`.

        Beside weights in the kernels' formats the rounding to bfloat16 does not show, and it takes half the memory.
        """
        return "bfloat16" if self.compiled else dtype

    def check_width(self, n_in: int) -> None:
        """Raise OptionError for a projection of `n_in` channels that this scheme cannot store."""
        if n_in % self.multiple:
            where = "" if self.compiled else " on a GPU"
            raise OptionError(
                f"--quantize {self.quantize} needs projections of multiples of {self.multiple} channels{where}, "
                f"one has {n_in}"
            )

    def fits(self, config: ModelConfig) -> bool:
        """Return whether it can store all projections of the model, or of a rank's part of it."""
        return not self._odd_widths(config)

    def _odd_widths(self, config: ModelConfig) -> list[int]:
        """Return the channels of projections that it cannot store."""
        rank = config.latent.q_lora_rank or 0 if config.latent else 0
        widths = (config.dim, config.hidden_dim, config.expert_dim, config.shared_dim, config.attended_dim, rank)
        return [width for width in widths if width % self.multiple]

    def check_part(self, shard: Shard) -> None:
        """Raise OptionError, which names the sizes that fit, if it can store the model but not this part of it."""
        whole, layout = shard.whole, shard.place.layout
        odd = self._odd_widths(shard.config)
        if not odd or not self.fits(whole):
            return
        layouts = [replace(layout, tensor=n, experts=layout.experts and n > 1) for n in fitting(whole, layout)]
        fit = [str(own.tensor) for own in layouts if self.fits(shard_of(whole, own.place(0)).config)]
        raise OptionError(
            f"--quantize {self.quantize} needs projections of multiples of {self.multiple} channels, with "
            f"--tensor-parallel-size {layout.tensor} one has {odd[0]}; choose one of: {', '.join(fit)}"
        )


SCHEMES: Mapping[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("none", "none", "plain", None),
        Scheme("bfloat16", "none", "bfloat16", 16, compiled=True),
        Scheme("fp8", "fp8", "fp8", 8, scale_bits=32),
        Scheme("int8", "int8", "int8", 8, scale_bits=32, compiled=True),
        Scheme(
            *("int4", "int4", "blocks", 4),
            scale_bits=16 + 16,
            group=BLOCK_GROUP,
            keeps_blocks=True,
            compiled=True,
            multiple=BLOCK_GROUP,
        ),
        Scheme("int4-weights", "int4", "int4", 4, scale_bits=16 + 8, group=INT4_GROUP, multiple=INT4_GROUP),
    )
}
QUANTIZE_NAMES = ("auto", *dict.fromkeys(scheme.quantize for scheme in SCHEMES.values()))
"""Values of --quantize."""
NAMES = tuple(dict.fromkeys((*QUANTIZE_NAMES[1:], *(name for name in SCHEMES if name != "bfloat16"))))
"""Schemes that can be chosen by name. bfloat16 stands for none on a CPU, for a model in that format."""


NEAREST: Mapping[str, Mapping[str, str]] = {
    "floats": {"cpu": "int8", "cuda": "none"},
    "fp8": {"cpu": "int8", "cuda": "fp8"},
    "int8": {"cpu": "int8", "cuda": "none"},
    "fp4": {"cpu": "int8", "cuda": "none"},
    "blocks4": {"cpu": "int4", "cuda": "int4"},
    "blocks8": {"cpu": "int4", "cuda": "none"},
    "blocks": {"cpu": "int4", "cuda": "none"},
}
"""The meaning of --quantize auto, by the kind of the checkpoint (checkpoint/quantized/config.py) and the device: a
second quantization would only lose accuracy. Beside 4-bit floats it is for the other matrices."""


def nearest(kind: str, device: str, config: ModelConfig) -> str:
    """Return the `kind` for `choose`: "floats" where the scheme that is nearest to it cannot store the model."""
    name = NEAREST[kind][device]
    rows = [row for row in SCHEMES.values() if row.quantize == name and row.compiled == (device == "cpu")]
    return kind if all(row.fits(config) for row in rows) else "floats"


def choose(name: str, dtype: str, device: str, *, compiled: bool, kind: str = "floats") -> Scheme:
    """Choose the scheme for --quantize `name` and --dtype `dtype` on a "cpu" or on "cuda".

    "auto" is `NEAREST` to the `kind` of the checkpoint; on a CPU without `compiled` kernels, or with a --dtype, none.
    Raises OptionError for a name that is not known, or not for this device, or without `compiled` kernels.
    """
    if name == "auto":
        if device == "cpu" and (not compiled or dtype != "auto"):
            return SCHEMES["none"]
        name = NEAREST[kind][device]
    if name not in NAMES:
        raise OptionError(f"--quantize {name} is not known, choose one of: auto, {', '.join(NAMES)}")
    rows = [row for row in SCHEMES.values() if name in (row.name, row.quantize)]
    if device == "cpu" and rows and rows[0].compiled and not compiled:
        raise OptionError(
            f"--quantize {name} on a CPU needs the compiled kernels, which do not serve here; build them (python -m "
            "model.kernels.cpu.build), or leave --quantize out"
        )
    if device == "cuda":  # there the short names mean the schemes that quantize weights only
        rows = [row for row in rows if not row.compiled]
    if not rows:
        names = dict.fromkeys(row.quantize for row in SCHEMES.values() if not row.compiled)
        raise OptionError(f"--quantize {name} is for a CPU only, on a GPU choose one of: auto, {', '.join(names)}")
    return rows[0]


def serving(scheme: Scheme, dtype: str, device: str, *, compiled: bool) -> Scheme:
    """Return the scheme that serves in place of the chosen one for a model in `dtype`."""
    return SCHEMES["bfloat16"] if compiled and (scheme.name, dtype, device) == ("none", "bfloat16", "cpu") else scheme


def of_encoder(scheme: Scheme) -> Scheme:
    """Return the scheme of the encoder of images or audio beside a text model in `scheme`.

    int8 costs it too much quality, see docs/log/lora-and-images.md.
    """
    return SCHEMES["bfloat16" if scheme.compiled else "none"]


def encoder_slowness(scheme: Scheme) -> int:
    """Return how many multiplications of a text model in `scheme` take as long as one of its encoder.

    The kernels of CPUs multiply 8-bit integers about twice as fast as bfloat16, which the encoder has beside them.
    """
    return 2 if scheme.compiled and scheme.value_bits is not None and scheme.value_bits <= 8 else 1


def stored_as(scheme: Scheme, dtype: str, own: OwnBits) -> str:
    """Name the format of most projections for a message: `own` are the checkpoint's bits, which the scheme may keep."""
    if scheme.value_bits is None:
        return dtype
    if isinstance(own, Fp4):
        return f"fp4, others as {scheme.name}" if scheme.compiled else scheme.name
    if scheme.keeps_blocks and own is not None and own >= 8:
        return f"8 bits in groups of {scheme.group}"
    return scheme.name
