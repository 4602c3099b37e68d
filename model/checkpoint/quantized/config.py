"""A configuration's statement about quantized weights: FP8, compressed-tensors, ModelOpt, AWQ or GPTQ. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from model.checkpoint.configs.fields import check_keys
from model.checkpoint.files import file_names, layout, read_json
from model.config.model import ModelConfig
from model.errors import ModelError, one_line, short
from model.kernels.groups import BLOCK_GROUP, INT4_GROUP, MXFP4_GROUP, NVFP4_GROUP

WeightKind = Literal["floats", "fp8", "fp4", "int8", "blocks4", "blocks8", "blocks"]
"""The format of most projections of a checkpoint: `NEAREST` in linear/schemes.py says which scheme is nearest to each.

"blocks4" and "blocks8" are groups of integers that schemes can keep on both devices, "blocks" on a CPU only."""

PACKED_BITS = (4, 8)
OTHER_BITS = 8 + 16 / BLOCK_GROUP
"""Bits of a weight that the file does not quantize, beside others in blocks: it gets 8, and a scale for 32 channels."""
NATIVE_KEYS = "quantization", "quantization_config"
"""Where params.json says it: Mistral's own key, and that of compressed-tensors."""
MODELOPT = "hf_quant_config.json"
"""NVIDIA's ModelOpt writes it beside config.json, or instead of `quantization_config` there."""
_NATIVE = ("qformat_weight", "qscheme_act")
"""Mistral's own keys; the scheme of activations means nothing here."""
_CT_FORMATS = (
    *("float-quantized", "int-quantized", "pack-quantized", "naive-quantized"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized"),
)


@dataclass(frozen=True, slots=True)
class Fp4:
    """Weights of a checkpoint in 4-bit floats, which every compiled scheme keeps as they are.

    They take `bits` each and are a `share` of the projections' weights, the output head not counted. `head` says
    whether it is such a matrix too.
    """

    bits: float
    share: float = 1.0
    head: bool = False


OwnBits = float | Fp4 | None
"""The average bits of a weight in a checkpoint's own blocks, or the size of its 4-bit floats; None without either."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the projections of a checkpoint are quantized.

    `bits` of a weight; `group` channels share a scale, 0 for one scale an output or a tensor. `block` is the shape of
    an fp8 block with a scale. Without `symmetric` each group has a zero. `ordered`: the channels of a group are not
    neighbours. `zero_offset` is added to each zero in the file (GPTQ's first format stores zero - 1).
    """

    method: Literal["fp8", "compressed-tensors", "modelopt", "awq", "gptq"]
    bits: int = 8
    group: int = 0
    floats: bool = False
    block: tuple[int, int] | None = None
    symmetric: bool = True
    ordered: bool = False
    zero_offset: int = 0

    @property
    def kind(self) -> WeightKind:
        if self.floats:
            return "fp4" if self.bits == 4 else "fp8"
        if self.bits == 8 and not self.group:
            return "int8"
        if self.bits == 8 or not self._fits_blocks:
            return "blocks8"
        return "blocks" if self.group % INT4_GROUP else "blocks4"

    @property
    def block_bits(self) -> float | None:
        """Return the bits of a weight in `Blocks`; None for a kind that is not in blocks."""
        if self.kind in ("fp8", "fp4", "int8"):
            return None
        if not self._fits_blocks:
            return OTHER_BITS
        return self.bits + (16 if self.symmetric else 32) / BLOCK_GROUP

    @property
    def _fits_blocks(self) -> bool:
        """Return whether each block of 32 neighbouring channels has one scale."""
        return not self.ordered and not self.group % BLOCK_GROUP

    def bits_with_head(self, config: ModelConfig) -> OwnBits:
        """Return the bits of own weights, of which all projections are quantized; in blocks the head takes 8 bits.

        In 4-bit floats published sparse models have their experts only.
        """
        if self.kind == "fp4":
            return Fp4(self.bits + 8 / self.group + 32 / config.dim, config.expert_share if config.n_experts else 1.0)
        own, head = self.block_bits, config.vocab_size * config.dim
        others = config.n_text_parameters - head * (1 if config.tied_head else 2)
        return None if own is None else (own * others + OTHER_BITS * head) / (others + head)

    @property
    def summary(self) -> str:
        """Describe it for the log, such as "gptq, 4 bits, groups of 128"."""
        if self.kind == "fp4":
            return f"{self.method}, {'nvfp4' if self.group == NVFP4_GROUP else 'mxfp4'}"
        number = "fp8" if self.floats else f"{self.bits} bits"
        what = number if self.method == "fp8" else f"{self.method}, {number}"
        if self.block:
            return f"{what}, blocks of {self.block[0]}x{self.block[1]}"
        return f"{what}, groups of {self.group}" if self.group else what


def read_quantization(directory: Path) -> Quantization | None:
    """Read how the weights in a directory are quantized; None for plain ones.

    Raises ModelError, one line, for what is not supported.
    """
    raw, where = _found(directory)
    if raw is None or raw == {}:
        return None
    if not isinstance(raw, dict):
        raise ModelError(f"{where} must be a JSON object, it is {short(raw)}")
    method = str(raw.get("quant_method", "")).lower().replace("_", "-")
    if method not in _READERS:
        given = short(raw.get("quant_method", "none"))
        raise ModelError(
            f"{where} has quant_method {given}; Noria supports {', '.join(_READERS)}: choose another quantization"
        )
    try:
        return _READERS[method](raw, where)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ModelError(f"{where} has a value that it cannot have: {one_line(error)}; download it again") from error


def _found(directory: Path) -> tuple[Any, str]:
    """Find the quantization in the configuration, and the name of its place."""
    if layout(directory) == "native":
        params = read_json(directory / "params.json")
        key = next((key for key in NATIVE_KEYS if params.get(key) is not None), NATIVE_KEYS[0])
        return _of_native(params.get(key)), f"{key} in params.json"
    config = read_json(directory / "config.json")
    text = config.get("text_config")
    for holder in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            if holder.get(key):
                return holder[key], f"{key} in config.json"
    if "quantize_config.json" in file_names(directory):  # what AutoGPTQ wrote at first
        return {"quant_method": "gptq", **read_json(directory / "quantize_config.json")}, "quantize_config.json"
    if MODELOPT in file_names(directory):
        return {"quant_method": "modelopt", **_object(read_json(directory / MODELOPT), "quantization")}, MODELOPT
    return None, ""


def _object(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    if not isinstance(found := raw.get(key), dict):
        raise ModelError(f"{MODELOPT} has {key} {short(found)}; it must be a JSON object: download it again")
    return found


def _of_native(raw: Any) -> Any:
    """Write Mistral's own fields as Hugging Face would."""
    if not isinstance(raw, dict) or "qformat_weight" not in raw:
        return raw
    if raw["qformat_weight"] != "fp8_e4m3":
        raise ModelError(
            f"quantization in params.json has qformat_weight {short(raw['qformat_weight'])}; Noria supports 'fp8_e4m3'"
        )
    check_keys(raw, _NATIVE, "quantization in params.json")
    return {"quant_method": "fp8"}


def _fp8(raw: Mapping[str, Any], where: str) -> Quantization:
    """Read fp8. Activation scales of the file mean nothing here: each scheme rounds activations as it needs to."""
    _require(raw, where, "fmt", ("e4m3",))
    block = raw.get("weight_block_size")
    return Quantization("fp8", floats=True, block=None if block is None else _block(block, where, "weight_block_size"))


def _awq(raw: Mapping[str, Any], where: str) -> Quantization:
    _require(raw, where, "version", ("gemm",))
    _require(raw, where, "zero_point", (True,))
    bits = _bits(raw.get("bits", raw.get("w_bit")), where, "bits", (4,))
    group = _group(raw.get("group_size", raw.get("q_group_size")), where)
    return Quantization("awq", bits, group, symmetric=False)


def _gptq(raw: Mapping[str, Any], where: str) -> Quantization:
    _require(raw, where, "checkpoint_format", ("gptq", "gptq_v2"))
    _require(raw, where, "pack_dtype", ("int32",))
    if any(not str(pattern).startswith("-") for pattern in raw.get("dynamic") or {}):
        raise ModelError(f"{where} has other bits for some layers (dynamic); Noria supports one number of bits")
    if raw.get("is_marlin_format"):
        raise ModelError(f"{where} has is_marlin_format true; Noria supports checkpoint_format gptq and gptq_v2")
    return Quantization(
        "gptq",
        _bits(raw.get("bits"), where, "bits", PACKED_BITS),
        _group(raw.get("group_size"), where),
        symmetric=bool(raw.get("sym", True)),
        ordered=bool(raw.get("desc_act", False)),
        zero_offset=0 if raw.get("checkpoint_format") == "gptq_v2" else 1,
    )


def _compressed(raw: Mapping[str, Any], where: str) -> Quantization:
    """Return the scheme with the fewest bits; the tensors say how each weight is stored, 4 bits or 8."""
    sparsity = (raw.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise ModelError(f"{where} has sparse weights (format {short(sparsity)}); Noria supports dense ones")
    if raw.get("transform_config"):
        raise ModelError(f"{where} has a transform_config, rotations of activations; Noria does not compute them")
    if raw.get("moe_sparsity_config"):
        raise ModelError(f"{where} has a moe_sparsity_config, layers of fewer experts; Noria supports equal layers")
    groups = [group for group in (raw.get("config_groups") or {}).values() if group.get("weights")]
    if not groups:
        raise ModelError(f"{where} has no config_groups with weights; Noria needs one")
    for group in groups:
        written = group.get("format") or raw.get("format")
        if written not in (None, *_CT_FORMATS):
            raise ModelError(f"{where} has format {short(written)}; Noria supports {', '.join(_CT_FORMATS)}")
    schemes = [_compressed_group(group["weights"], where) for group in groups]
    grouped = [scheme for scheme in schemes if scheme.group]
    for name, found in (("group_size", {s.group for s in grouped}), ("actorder", {s.ordered for s in grouped})):
        if len(found) > 1:
            raise ModelError(f"{where} has config_groups that differ in {name}; Noria supports one for all groups")
    block = next((scheme.block for scheme in schemes if scheme.block), None)
    return replace(min(schemes, key=lambda scheme: (scheme.bits, not scheme.group)), block=block)


def _compressed_group(raw: Mapping[str, Any], where: str) -> Quantization:
    floats = raw.get("type", "int") == "float"
    strategy = raw.get("strategy") or ("group" if raw.get("group_size") else "tensor")
    if strategy not in ("tensor", "channel", "group", "block", "tensor_group"):
        raise ModelError(f"{where} has strategy {short(strategy)}; Noria supports tensor, channel, group and block")
    bits = _bits(raw.get("num_bits", 8), where, "num_bits", PACKED_BITS)
    if floats and bits == 4:
        return _fp4(raw.get("group_size"), where)
    return Quantization(
        "compressed-tensors",
        bits,
        _group(raw.get("group_size"), where) if strategy == "group" else 0,
        floats,
        _block(raw.get("block_structure"), where, "block_structure") if strategy == "block" else None,
        symmetric=bool(raw.get("symmetric", True)),
        ordered=raw.get("actorder") in ("group", "dynamic"),
    )


def _fp4(group: Any, where: str) -> Quantization:
    if group not in (NVFP4_GROUP, MXFP4_GROUP):
        raise ModelError(
            f"{where} has 4-bit floats in groups of {short(group)}; Noria supports {NVFP4_GROUP} (NVFP4) and "
            f"{MXFP4_GROUP} (MXFP4)"
        )
    return Quantization("compressed-tensors", 4, group, floats=True)


def _modelopt(raw: Mapping[str, Any], where: str) -> Quantization:
    """Read NVIDIA's ModelOpt, in `quantization_config` or in a file of its own."""
    algorithm = raw.get("quant_algo")
    if algorithm == "NVFP4":
        _require(raw, where, "group_size", (NVFP4_GROUP,))
        return Quantization("modelopt", 4, NVFP4_GROUP, floats=True)
    if algorithm != "FP8":
        raise ModelError(f"{where} has quant_algo {short(algorithm)}; Noria supports 'FP8' and 'NVFP4'")
    return Quantization("modelopt", floats=True)


_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Quantization]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "awq": _awq,
    "gptq": _gptq,
}


def _require(raw: Mapping[str, Any], where: str, key: str, allowed: tuple[Any, ...]) -> None:
    """Raise ModelError for another value; nothing in the file means the first."""
    value = raw.get(key)
    value = value.lower() if isinstance(value, str) else value
    if value is not None and value not in allowed:
        raise ModelError(f"{where} has {key} {short(raw[key])}; Noria supports {' and '.join(map(repr, allowed))}")


def _bits(value: Any, where: str, key: str, allowed: tuple[int, ...]) -> int:
    if value not in allowed or isinstance(value, bool):
        raise ModelError(f"{where} has {key} {short(value)}; Noria supports {' and '.join(map(str, allowed))}")
    return int(value)


def _group(value: Any, where: str) -> int:
    """Return the channels of a group; 0 stands for -1 or nothing: one group an output."""
    if value is None or value == -1:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{where} has group_size {short(value)}; it must be -1 or at least 1: download it again")
    return value


def _block(value: Any, where: str, key: str) -> tuple[int, int]:
    sizes = value if isinstance(value, list) and len(value) == 2 else [0]
    if not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ModelError(f"{where} has {key} {short(value)}; it must be two sizes of at least 1: download it again")
    return sizes[0], sizes[1]
