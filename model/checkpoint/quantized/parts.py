"""Which tensors of quantized safetensors make up each weight, from the headers alone. No torch.

A weight `X.weight` is one tensor, or several: `X.weight` with `X.weight_scale`, `X.qweight` with `X.qzeros` and
`X.scales`, and so on. They may lie in different files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from model.checkpoint.files import DTYPES, ShardFile
from model.checkpoint.names import canonical_name, is_encoder
from model.checkpoint.quantized.config import OTHER_BITS, Fp4, OwnBits, Quantization
from model.errors import ModelError, short

HEAD = "output.weight"
SCALES = ("weight_scale_inv", "weight_scale", "qscale_weight")
"""The names that fp8, compressed-tensors and Mistral's native format give to the scale of `weight`."""
_INTS, _FLOATS = ("I32",), tuple(DTYPES)
_FORMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "weight": {
        **dict.fromkeys(SCALES, _FLOATS),
        "weight_zero_point": ("I8",),
    },
    "weight_packed": {
        "weight_scale": _FLOATS,
        "weight_shape": ("I64", "I32"),
        "weight_zero_point": ("I32", "I8"),
        "weight_g_idx": ("I32", "I64"),
    },
    "qweight": {"scales": _FLOATS, "qzeros": _INTS, "g_idx": ("I32", "I64")},
}
"""The dtypes of the other parts of a weight, by the name of the part with its values."""
_FP4_FORMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "weight": {"weight_scale": ("F8_E4M3",), "weight_scale_2": _FLOATS},
    "weight_packed": {"weight_scale": ("F8_E4M3", "U8"), "weight_global_scale": _FLOATS},
}
"""The same for 4-bit floats: ModelOpt's NVFP4, and NVFP4 or MXFP4 of compressed-tensors."""
FP4 = "U8"
"""The dtype of two 4-bit floats in a byte."""
_NEEDED = {"weight_packed": ("weight_scale", "weight_shape"), "qweight": ("scales", "qzeros")}
_VALUES = {"weight": (*DTYPES, "F8_E4M3", "I8", FP4), "weight_packed": (*_INTS, FP4), "qweight": _INTS}
_ROLES = {*_FORMS, *(role for forms in (_FORMS, _FP4_FORMS) for form in forms.values() for role in form)}
_UNUSED = {"qscale_act", "activation_scale", "input_scale", "input_zero_point", "output_scale", "q_scale", "k_scale"}
_UNUSED |= {"input_global_scale", "v_scale", "kv_scale", "k_zero_point", "v_zero_point"}
"""Scales of activations, keys and values: each scheme and each cache computes its own."""
_PACKED = re.compile(r"(.+\.experts\.(?:gate_up|down)_proj)(?:_(scale_inv|scale|activation_scale))?")
"""A tensor of all experts, or its scales, as transformers writes them."""


@dataclass(frozen=True, slots=True)
class FileTensor:
    """One tensor of a weight: its file, its name there, its dtype and its shape."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightParts:
    """A weight under its native name. `form` is the role of the part with the values, `parts` has all by role."""

    name: str
    form: str
    parts: Mapping[str, FileTensor]

    @property
    def values(self) -> FileTensor:
        return self.parts[self.form]

    @property
    def is_plain(self) -> bool:
        return self.form == "weight" and self.values.dtype in DTYPES

    @property
    def is_fp4(self) -> bool:
        """Return whether the values are 4-bit floats."""
        return self.values.dtype == FP4

    @property
    def allowed(self) -> Mapping[str, tuple[str, ...]]:
        """Return the other parts that it may have, with their dtypes."""
        return (_FP4_FORMS if self.is_fp4 else _FORMS).get(self.form, {})

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the other parts that it must have."""
        if not self.is_fp4:
            return _NEEDED.get(self.form, ())
        scale = self.parts.get("weight_scale")
        return tuple(self.allowed)[: 1 if scale is not None and scale.dtype == FP4 else None]

    @property
    def scale(self) -> FileTensor | None:
        """Return the part with the scales of fp8 or int8 values."""
        return next((self.parts[role] for role in SCALES if role in self.parts), None)

    def bits(self, quantization: Quantization) -> int:
        """Return the bits of a value. Packed ones may have 4 or 8 among others: the scales say how many channels."""
        if self.is_fp4:
            return 4
        if self.form == "weight":
            return 8
        group, shape = quantization.group, self.parts[_NEEDED[self.form][0]].shape
        if self.form == "qweight" or quantization.bits == 8 or not group or len(shape) != 2:
            return quantization.bits
        in_words = 8 * self.values.shape[-1]
        return 8 if in_words >= 2 * group * shape[1] else 4

    def size(self, quantization: Quantization) -> int:
        """Return the number of values. Packed rows of compressed-tensors count with their padding."""
        if self.is_fp4:
            return prod(self.values.shape) * 2
        return prod(self.values.shape) * (1 if self.form == "weight" else 32 // self.bits(quantization))


def quantized_part(shard: ShardFile) -> str | None:
    """Return the name of a tensor that only a quantized weight has, None if there is none."""
    for name, dtype in shard.dtypes.items():
        if name.rpartition(".")[2] in _ROLES - {"weight"} or dtype.startswith("F8_"):
            return name
    return None


def weight_parts(shards: Iterable[ShardFile]) -> tuple[WeightParts, ...]:
    """Sort the weights by file and layer: projections that are joined are then in memory only briefly.

    Raises ModelError for a tensor that no weight has, and for a weight with a part missing or of a wrong dtype.
    """
    found: dict[str, dict[str, FileTensor]] = {}
    for shard in shards:
        for name, dtype in shard.dtypes.items():
            known, role = _part_of(name)
            if known is None:
                continue
            parts = found.setdefault(known, {})
            if role in parts:
                raise ModelError(f"the checkpoint has the tensor {short(name)} twice; download it again")
            parts[role] = FileTensor(shard.path, name, dtype, shard.shapes[name])
    weights = [_weight(name, parts) for name, parts in found.items()]
    return tuple(sorted(weights, key=lambda weight: (weight.values.path.name, weight.name)))


def own_bits(weights: Sequence[WeightParts], quantization: Quantization, *, tied_head: bool) -> OwnBits:
    """Return the average bits of a projection's weight in blocks, or in 4-bit floats; else None."""
    text = [weight for weight in weights if len(weight.values.shape) == 2 and not is_encoder(weight.name)]
    if quantization.kind == "fp4":
        return _fp4_bits(text, quantization)
    return _block_bits(text, quantization, tied_head=tied_head)


def _fp4_bits(weights: Sequence[WeightParts], quantization: Quantization) -> Fp4 | None:
    """Return the bits of codes, a group's scales, and a float32 scale an output, as the kernels store them."""
    layers = [weight for weight in weights if weight.name not in ("tok_embeddings.weight", HEAD)]
    own = [weight for weight in layers if weight.is_fp4]
    if not own:
        return None
    size, total = (sum(weight.size(quantization) for weight in some) for some in (own, layers))
    tables = sum(8 * prod(weight.parts["weight_scale"].shape) + 32 * weight.values.shape[0] for weight in own)
    return Fp4(4 + tables / size, size / total, any(weight.is_fp4 for weight in weights if weight.name == HEAD))


def _block_bits(weights: Sequence[WeightParts], quantization: Quantization, *, tied_head: bool) -> float | None:
    """Return the average bits in blocks: weights that are not in blocks are quantized to 8 bits."""
    own = quantization.block_bits
    if own is None:
        return None
    bits = total = 0.0
    for weight in weights:
        if tied_head or weight.name != "tok_embeddings.weight":
            size = weight.size(quantization)
            is_other = weight.is_plain or weight.bits(quantization) != quantization.bits
            bits, total = bits + size * (OTHER_BITS if is_other else own), total + size
    return bits / total if total else own


def _part_of(name: str) -> tuple[str | None, str]:
    """Return the native name of a tensor's weight, None if nothing reads it, and the tensor's role there."""
    module, _, role = name.rpartition(".")
    if (packed := _PACKED.fullmatch(name)) is not None:
        module, role = packed[1], f"weight_{packed[2]}" if packed[2] else "weight"
        return None if packed[2] == "activation_scale" else canonical_name(module), role
    if role in _UNUSED:
        return None, role
    if role == "bias" and is_encoder(name):  # it is a weight of its own
        return canonical_name(name), "weight"
    return canonical_name(f"{module}.weight" if role in (*_ROLES, "bias") else name), role


def _weight(name: str, parts: Mapping[str, FileTensor]) -> WeightParts:
    form = next((role for role in _FORMS if role in parts), None)
    if form is None:
        raise ModelError(f"the weight {name!r} has only {', '.join(sorted(parts))}; download the model again")
    weight = WeightParts(name, form, parts)
    _check_dtype(name, form, weight.values, _VALUES[form])
    for role, part in parts.items():
        if role not in (form, "bias"):
            if role not in weight.allowed or weight.is_plain:
                raise ModelError(
                    f"the weight {name!r} in {weight.values.dtype} has a {role}, which cannot belong to it"
                )
            _check_dtype(name, role, part, weight.allowed[role])
    for role in weight.needed:
        if role not in parts:
            raise ModelError(f"the weight {name!r} has {form}, but no {role}; download the model again")
    if form == "weight" and not weight.is_plain and weight.scale is None:
        raise ModelError(
            f"the weight {name!r} is in {weight.values.dtype}, but has no scale ({' or '.join(SCALES)}); "
            "download the model again"
        )
    return weight


def _check_dtype(name: str, role: str, part: FileTensor, allowed: Sequence[str]) -> None:
    if part.dtype not in allowed:
        raise ModelError(f"the {role} of {name!r} has dtype {short(part.dtype)}; Noria supports {', '.join(allowed)}")
