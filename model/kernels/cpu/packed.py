"""Weights in the layouts of linear.c: their memory, and the record that points to it."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.kernels.cpu.records import (
    FORMATS,
    MAX_CHANNELS,
    OUTPUTS,
    SUPERBLOCK,
    SUPERBLOCK_BYTES,
    floats,
    pointer,
    struct,
)
from model.kernels.groups import BLOCK_GROUP, INT8_GROUP, NVFP4_GROUP

_INT8, _Q8, _Q8_MIN, _Q4, _Q4_MIN, _BFLOAT16, _Q4_K, _NVFP4, _MXFP4 = range(len(FORMATS))


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Weights of one projection; `packed` is uint8 [n_out/16, n_in/group, bytes of a record], padded."""

    n_out: int
    n_in: int
    packed: Tensor
    scales: Tensor | None
    record: Any


class PackedExperts:
    """The weights of a block of sparse experts, all in one place for the kernels.

    gate [n_experts, dim] float32; `experts` and `shared` are pairs of w13 and w2, None for an expert that another rank
    holds. `n_in` is dim.
    """

    def __init__(
        self,
        gate: Tensor,
        experts: Sequence[tuple[PackedWeights, PackedWeights] | None],
        shared: tuple[PackedWeights, PackedWeights] | None,
        n_used: int,
        routed_scale: float,
    ) -> None:
        self.n_in = gate.shape[1]
        pointers = [_pointers([None if pair is None else pair[i].record for pair in experts]) for i in range(2)]
        self._owners = (gate, experts, shared, pointers)  # keep alive the memory that the record points to
        both = (None, None) if shared is None else [ctypes.addressof(weights.record) for weights in shared]
        self.record = struct("experts_t")(
            gate=floats("gate", gate),
            w13=ctypes.addressof(pointers[0]),
            w2=ctypes.addressof(pointers[1]),
            shared_w13=both[0],
            shared_w2=both[1],
            n_experts=len(experts),
            n_used=n_used,
            routed_scale=routed_scale,
        )


class PackedLatent:
    """The weights of latent attention, for the kernels. `norms` are those of queries, or None, and of latents.

    `products` are wq_a, or None, wq_b and wkv_a; `absorb` and `values` have one for each head.
    """

    def __init__(
        self,
        norms: tuple[Tensor | None, Tensor],
        products: tuple[PackedWeights | None, PackedWeights, PackedWeights],
        absorb: Sequence[PackedWeights],
        values: Sequence[PackedWeights],
    ) -> None:
        self.n_heads = len(absorb)
        heads = [_pointers([part.record for part in parts]) for parts in (absorb, values)]
        self._owners = (norms, products, absorb, values, heads)  # keep alive the memory that the record points to
        wq_a, wq_b, wkv_a = (None if part is None else ctypes.addressof(part.record) for part in products)
        q_norm, kv_norm = norms
        self.record = struct("latent_t")(
            q_a_norm=None if q_norm is None else floats("q_a_norm", q_norm),
            kv_a_norm=floats("kv_a_norm", kv_norm),
            wq_a=wq_a,
            wq_b=wq_b,
            wkv_a=wkv_a,
            absorb=ctypes.addressof(heads[0]),
            values=ctypes.addressof(heads[1]),
        )


def _pointers(records: Sequence[Any]) -> "ctypes.Array[Any]":
    addresses = (None if record is None else ctypes.addressof(record) for record in records)
    return (ctypes.c_void_p * len(records))(*addresses)


def padded(n: int, multiple: int) -> int:
    """Round n up to a multiple."""
    return -(-n // multiple) * multiple


def int8(n_out: int, n_in: int) -> PackedWeights:
    """Allocate memory for int8 with a scale an output."""
    return _allocated(n_out, n_in, _INT8, INT8_GROUP, INT8_GROUP, fill=128, has_scales=True)


def put_int8(weights: PackedWeights, first: int, values: Tensor, scales: Tensor) -> None:
    """Store int8 values [n, n_in] (-128 counts as -127) and their scales [n] as outputs first.. of int8 weights."""
    assert weights.scales is not None
    n = len(values)
    records = weights.packed.view(*weights.packed.shape[:2], INT8_GROUP // 4, OUTPUTS, 4)
    outputs = torch.arange(first, first + n)
    whole = pad(values.clamp(min=-127), (0, -weights.n_in % INT8_GROUP)).view(torch.uint8) ^ 128
    groups = whole.view(n, -1, INT8_GROUP // 4, 4)  # 4 neighbouring channels, which linear.c calls a quad
    records[outputs // OUTPUTS, :, :, outputs % OUTPUTS] = groups
    weights.scales[first : first + n] = scales


def bfloat16(n_out: int, n_in: int) -> PackedWeights:
    """Allocate memory for bfloat16."""
    return _allocated(n_out, n_in, _BFLOAT16, INT8_GROUP, 2 * INT8_GROUP)


def blocks(n_out: int, n_in: int, n_bytes: int, *, with_minima: bool) -> PackedWeights:
    """Allocate memory for groups of 32 channels, `n_bytes` each: 32 in 8 bits, 16 in 4."""
    whole = n_bytes + (4 if with_minima else 2)
    return _allocated(n_out, n_in, block_format(n_bytes, with_minima), BLOCK_GROUP, whole)


def block_format(n_bytes: int, with_minima: bool) -> int:
    """Return the format of groups of 32 channels in `n_bytes` each."""
    return {(32, False): _Q8, (32, True): _Q8_MIN, (16, False): _Q4, (16, True): _Q4_MIN}[n_bytes, with_minima]


def superblocks(n_out: int, n_in: int) -> PackedWeights:
    """Allocate memory for blocks of 256 channels of Q4_K: 144 bytes each, as in a GGUF file."""
    return _allocated(n_out, n_in, _Q4_K, SUPERBLOCK, SUPERBLOCK_BYTES)


def fp4(n_out: int, n_in: int, group: int) -> PackedWeights:
    """Allocate memory for 4-bit floats, a scale of a byte for `group` channels, 16 or 32, and one for each output."""
    format = _NVFP4 if group == NVFP4_GROUP else _MXFP4
    return _allocated(n_out, n_in, format, BLOCK_GROUP, BLOCK_GROUP // 2 + BLOCK_GROUP // group, has_scales=True)


def _allocated(
    n_out: int, n_in: int, format: int, group: int, n_bytes: int, *, fill: int = 0, has_scales: bool = False
) -> PackedWeights:
    """Allocate memory for groups of channels, `n_bytes` an output each. `fill` is for outputs after the last one."""
    if n_in > MAX_CHANNELS:
        raise ValueError(f"{n_in} inputs of a projection are more than {MAX_CHANNELS}, which the kernels can add")
    shape = (padded(n_out, OUTPUTS) // OUTPUTS, padded(n_in, group) // group, n_bytes * OUTPUTS)
    packed = torch.empty(shape, dtype=torch.uint8, device="cpu")
    packed[-1] = fill
    scales = torch.zeros(len(packed) * OUTPUTS, dtype=torch.float32, device="cpu") if has_scales else None
    at = pointer("packed", packed, torch.uint8)
    scales_at = None if scales is None else floats("scales", scales)
    record = struct("weights")(packed=at, scales=scales_at, n_out=n_out, n_in=n_in, format=format)
    return PackedWeights(n_out, n_in, packed, scales, record)
