"""The weights of quantized safetensors, one at a time."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.checkpoint.experts import named
from model.checkpoint.quantized.config import PACKED_BITS, Quantization
from model.checkpoint.quantized.parts import SCALES, WeightParts
from model.checkpoint.stored import Stored
from model.errors import ModelError, one_line
from model.kernels.groups import MXFP4_GROUP, NVFP4_GROUP

_AWQ_PLACES = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
"""Which 4 bits of an int32, from the lowest, hold each of 8 neighbouring outputs (AWQ's gemm format)."""
Tensors = Mapping[str, Tensor]
"""The tensors of a weight by their roles."""


def matrices(
    weights: Sequence[WeightParts], quantization: Quantization, skip: Collection[str]
) -> Iterator[tuple[str, Stored]]:
    """Yield native names and weights in the order of `weights`, without `skip`.

    Among weights in blocks, plain matrices have the layout of groups too.
    Raises ModelError for a weight whose parts do not fit together.
    """
    from safetensors import SafetensorError

    keeps_blocks = quantization.block_bits is not None
    with ExitStack() as stack:
        opened: dict[Path, Any] = {}
        for weight in weights:
            if weight.name in skip:
                continue
            if weight.values.path not in opened:  # of a file that is read, the pages can leave memory
                stack.close()
                opened.clear()
            try:
                tensors = {role: _tensor(part.path, part.name, opened, stack) for role, part in weight.parts.items()}
            except (SafetensorError, OSError) as error:
                name = weight.values.path.name
                raise ModelError(f"{name} cannot be read: {one_line(error)}; download it again") from error
            try:
                for name, matrix in _named(weight, tensors, quantization):
                    if keeps_blocks and matrix.layout == "floats" and len(matrix.shape) == 2:
                        matrix = replace(matrix, layout="groups")
                    if name not in skip:
                        yield name, matrix
            except ValueError as error:
                raise ModelError(f"the weight {weight.name!r} is damaged: {error}; download it again") from error


def _named(weight: WeightParts, tensors: Tensors, quantization: Quantization) -> Iterator[tuple[str, Stored]]:
    """Yield the weight under its name, or one that holds those of all experts as matrices of their own."""
    if "*" not in weight.name:
        yield weight.name, stored_matrix(weight.form, tensors, quantization)
        return
    values = tensors[weight.form]
    if any(tensor.dim() != 3 or len(tensor) != len(values) for tensor in tensors.values()):
        shapes = [list(tensor.shape) for tensor in tensors.values()]
        raise ValueError(f"its tensors have shapes {shapes}, expected one matrix of each for every expert")
    for expert in range(len(values)):
        own = {role: _of_halves(tensor[expert], values.shape[1], quantization) for role, tensor in tensors.items()}
        yield from named(weight.name, expert, stored_matrix(weight.form, own, quantization))


def _of_halves(table: Tensor, n_out: int, quantization: Quantization) -> Tensor:
    """Spread a scale for each of gate and up, [2, 1], to one for each output; return any other table as it is."""
    if quantization.block is None and list(table.shape) == [2, 1] and n_out > 2:
        return table.repeat_interleave(n_out // 2, dim=0)
    return table


def _tensor(path: Path, name: str, opened: dict[Path, Any], stack: ExitStack) -> Tensor:
    from safetensors import safe_open

    if path not in opened:
        opened[path] = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
    tensor: Tensor = opened[path].get_tensor(name)
    return tensor


def stored_matrix(form: str, tensors: Tensors, quantization: Quantization) -> Stored:
    """Make a weight of its tensors; `form` is the role of the values. Raises ValueError if they do not fit."""
    if "bias" in tensors and tensors["bias"].any():
        raise ValueError("it has a bias, which no supported model family has")
    if tensors[form].dtype is torch.uint8:
        return _fp4(form, tensors)
    if form == "qweight":
        return _awq(tensors, quantization) if quantization.method == "awq" else _gptq(tensors, quantization)
    if form == "weight_packed":
        return _packed(tensors, quantization)
    scale = next((tensors[role] for role in SCALES if role in tensors), None)
    if scale is None:
        return Stored(tensors["weight"])
    return _scaled(tensors["weight"], scale, tensors.get("weight_zero_point"), quantization)


def _fp4(form: str, tensors: Tensors) -> Stored:
    """Take codes [n_out, n_in / 2], scales [n_out, n_groups]. ModelOpt's second scale multiplies, the other divides."""
    n_out, n_bytes = _two(tensors[form], form)
    scales = tensors["weight_scale"]
    group = MXFP4_GROUP if scales.dtype is torch.uint8 else NVFP4_GROUP
    if n_bytes * 2 % group:
        raise ValueError(f"its {form} has rows of {n_bytes * 2} values, expected a multiple of {group}")
    _expect(scales, [n_out, n_bytes * 2 // group], "weight_scale")
    factor = _one(tensors, "weight_scale_2") / _one(tensors, "weight_global_scale")
    matrix = Stored(tensors[form], "fp4", scales.view(torch.uint8), group, factor=factor)
    matrix.check_fp4()  # later, halves that are packed together have one name
    return matrix


def _one(tensors: Tensors, role: str) -> float:
    """Return the number in a tensor, 1 if there is no tensor."""
    if role not in tensors:
        return 1.0
    if (found := tensors[role]).numel() != 1 or not 0 < found.item() < math.inf:
        raise ValueError(f"its {role} is {found.tolist()}, expected one number above 0")
    return float(found.item())


def _scaled(values: Tensor, scale: Tensor, zeros: Tensor | None, quantization: Quantization) -> Stored:
    n_out, n_in = _two(values, "weight")
    table, group = _by_output(scale, n_out, n_in, quantization)
    if zeros is not None:
        zeros, _ = _by_output(zeros, n_out, n_in, quantization)
    return Stored(values, "groups", table, group, zeros)


def _by_output(scale: Tensor, n_out: int, n_in: int, quantization: Quantization) -> tuple[Tensor, int]:
    """Return scales of a tensor, outputs, groups or blocks as [n_out, n_groups], and the channels of a group."""
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(n_out, 1), n_in
    if scale.shape in ((n_out,), (n_out, 1)):
        return scale.reshape(n_out, 1), n_in
    if quantization.block is not None:
        rows, group = quantization.block
        expected = [-(-n_out // rows), -(-n_in // group)]
    else:
        rows, group = 1, quantization.group or n_in
        expected = [n_out, -(-n_in // group)]
    if list(scale.shape) != expected:
        others = "" if expected == [n_out, 1] else f"{expected}, "
        raise ValueError(f"its scale has shape {list(scale.shape)}, expected {others}[{n_out}, 1] or [1]")
    return (scale if rows == 1 else scale[torch.arange(n_out) // rows]), group


def _gptq(tensors: Tensors, quantization: Quantization) -> Stored:
    """Take qweight [n_in * bits / 32, n_out], qzeros [n_groups, n_out * bits / 32], scales [n_groups, n_out]."""
    bits, (n_rows, n_out) = quantization.bits, _two(tensors["qweight"], "qweight")
    a_word = 32 // bits
    n_in = n_rows * a_word
    group = quantization.group or n_in
    zeros = _unpack_words(_zeros_of(tensors, n_out, n_in, group, a_word), bits)
    zeros = zeros + quantization.zero_offset & 2**bits - 1
    channels = _channels(tensors.get("g_idx"), n_in, group)
    q = _unpack_words(tensors["qweight"].T, bits)
    return _integers(q, tensors["scales"].T, zeros[:, :n_out].T, bits, group, channels)


def _awq(tensors: Tensors, quantization: Quantization) -> Stored:
    """Take qweight [n_in, n_out / 8], qzeros [n_groups, n_out / 8], scales [n_groups, n_out]."""
    n_in, n_words = _two(tensors["qweight"], "qweight")
    group = quantization.group or n_in
    zeros = _awq_order(_unpack_words(_zeros_of(tensors, n_words * 8, n_in, group, 8), 4))
    q = _awq_order(_unpack_words(tensors["qweight"], 4)).T.contiguous()
    return _integers(q, tensors["scales"].T, zeros.T, 4, group)


def _integers(
    q: Tensor, scales: Tensor, zeros: Tensor, bits: int, group: int, channels: Tensor | None = None
) -> Stored:
    """Make a matrix of unsigned integers and zeros: those of 8 bits become int8."""
    if bits == 8:
        q, zeros = ((table ^ 128).view(torch.int8) for table in (q, zeros))
    return Stored(q, "groups", scales, group, zeros if bits == 4 or zeros.any() else None, channels)


def _zeros_of(tensors: Tensors, n_out: int, n_in: int, group: int, a_word: int) -> Tensor:
    """Return qzeros, after a check of its shape and that of the scales."""
    n_groups = -(-n_in // group)
    _expect(tensors["scales"], [n_groups, n_out], "scales")
    return _expect(tensors["qzeros"], [n_groups, -(-n_out // a_word)], "qzeros")


def _packed(tensors: Tensors, quantization: Quantization) -> Stored:
    """Take weight_packed [n_out, n_in * bits / 32], weight_scale [n_out, n_groups], column-packed weight_zero_point."""
    packed, shape = tensors["weight_packed"], tensors["weight_shape"].tolist()
    n_out, n_words = _two(packed, "weight_packed")
    fits = isinstance(shape, list) and len(shape) == 2 and shape[0] == n_out
    bits = _bits_of(shape[1], n_words, quantization) if fits else None
    if bits is None:
        held = 32 // quantization.bits
        raise ValueError(f"its weight_shape is {shape}, weight_packed {list(packed.shape)} holds {held} a value")
    n_in = shape[1]
    scales = tensors["weight_scale"]
    if scales.numel() == 1:
        scales = scales.reshape(1, 1).expand(n_out, 1)
    one_scale = list(scales.shape) == [n_out, 1]
    group = n_in if one_scale else quantization.group or n_in
    _expect(scales, [n_out, -(-n_in // group)], "weight_scale")
    zeros = torch.full(scales.shape, 2 ** (bits - 1), dtype=torch.uint8)
    if (found := tensors.get("weight_zero_point")) is not None:
        zeros = _packed_zeros(found, n_out, scales.shape[1], bits)
    channels = _channels(tensors.get("weight_g_idx"), n_in, group)
    return _integers(_unpack_words(packed, bits)[:, :n_in], scales, zeros, bits, group, channels)


def _bits_of(n_in: int, n_words: int, quantization: Quantization) -> int | None:
    """Return the bits of a packed value: the declared ones if `n_words` hold them, else as held; None for neither."""
    both = (quantization.bits, *PACKED_BITS)
    return next((bits for bits in both if -(-n_in * bits // 32) == n_words), None)


def _packed_zeros(found: Tensor, n_out: int, n_groups: int, bits: int) -> Tensor:
    if found.dtype is torch.int8:  # of a symmetric weight, or one zero for all: not packed
        wide = found.reshape(1, 1).expand(n_out, n_groups) if found.numel() == 1 else found
        return (_expect(wide, [n_out, n_groups], "weight_zero_point") + 2 ** (bits - 1)).to(torch.uint8)
    _expect(found, [-(-n_out * bits // 32), n_groups], "weight_zero_point")
    return _unpack_words(found.T, bits)[:, :n_out].T


def _channels(groups: Tensor | None, n_in: int, group: int) -> Tensor | None:
    """Return the group of each channel; None where the groups are neighbouring channels."""
    if groups is None or groups.eq(-1).all():  # compressed-tensors writes -1 for "not set"
        return None
    groups = _expect(groups, [n_in], "g_idx").long()
    n_groups = math.ceil(n_in / group)
    if groups.min() < 0 or groups.max() >= n_groups:
        raise ValueError(
            f"its g_idx has values {int(groups.min())} to {int(groups.max())}, expected 0 to {n_groups - 1}"
        )
    return None if groups.equal(torch.arange(n_in) // group) else groups


def _two(tensor: Tensor, role: str) -> tuple[int, int]:
    if tensor.dim() != 2:
        raise ValueError(f"its {role} has shape {list(tensor.shape)}, expected a matrix")
    return tensor.shape[0], tensor.shape[1]


def _expect(tensor: Tensor, shape: list[int], role: str) -> Tensor:
    if list(tensor.shape) != shape:
        raise ValueError(f"its {role} has shape {list(tensor.shape)}, expected {shape}")
    return tensor


def _unpack_words(packed: Tensor, bits: int) -> Tensor:
    """Unpack int32 [n, k] -> uint8 [n, k * 32 / bits], lowest bits first. Worked example: 0x21, 4 bits -> 1, 2, 0..."""
    octets = packed.contiguous().view(torch.uint8)  # the machine is little-endian, as the file is
    return octets if bits == 8 else torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def _awq_order(unpacked: Tensor) -> Tensor:
    """Put the outputs [n, k] that `_unpack_words` makes of AWQ's int32 [n, k/8] in order."""
    return unpacked.unflatten(-1, (-1, 8))[..., _AWQ_PLACES].flatten(-2)
