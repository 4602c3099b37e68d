"""Weights in the layouts of linear.c: their memory, and the record that points to it."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.kernels.cpu.records import AdapterRows, ExpertsRecord, LowRankRecord, WeightsRecord
from model.kernels.groups import BLOCK_GROUP, INT8_GROUP

OUTPUTS = 16
"""Outputs that are stored together."""
RANKS, CHANNELS = 8, 32
"""Ranks and channels of an adapter that are stored together."""
_INT8, _Q8, _Q8_MIN, _Q4, _Q4_MIN, _BFLOAT16 = range(6)


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Weights of one projection; `packed` is uint8 [n_out/16, n_in/group, bytes of a record], padded."""

    n_out: int
    n_in: int
    group: int
    packed: Tensor
    scales: Tensor | None
    record: WeightsRecord

    def scratch_bytes(self, n_rows: int) -> int:
        """Scratch memory for the rows: bytes, with 12 more for each group, or floats for bfloat16 weights."""
        a_group = 4 * self.group if self.record.format == _BFLOAT16 else self.group + 12
        return n_rows * padded(self.n_in, self.group) // self.group * a_group


class PackedExperts:
    """The weights of a block of sparse experts, all in one place for the kernels.

    gate [n_experts, dim] float32; `experts` and `shared` are pairs of w13 and w2. `load` [n_experts] int64 counts the
    tokens of each expert. `n_in` is dim.
    """

    def __init__(
        self,
        gate: Tensor,
        experts: Sequence[tuple[PackedWeights, PackedWeights]],
        shared: tuple[PackedWeights, PackedWeights] | None,
        load: Tensor,
        n_used: int,
        routed_scale: float,
    ) -> None:
        self.n_in = experts[0][0].n_in
        pointers = [_pointers([weights.record for weights in column]) for column in zip(*experts, strict=True)]
        self._owners = (gate, experts, shared, load, pointers)  # keep alive the memory that the record points to
        self.record = ExpertsRecord(
            gate.data_ptr(),
            *map(ctypes.addressof, pointers),
            *((None, None) if shared is None else (ctypes.addressof(weights.record) for weights in shared)),
            load.data_ptr(),
            len(experts),
            n_used,
            routed_scale,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PackedLowRank:
    """What a LoRA adapter adds to one projection, in the layout of `lora` in linear.h, in bfloat16."""

    a: Tensor
    b: Tensor
    begins: Tensor
    firsts: Tensor
    record: LowRankRecord

    @property
    def n_bytes(self) -> int:
        return sum(part.nbytes for part in (self.a, self.b, self.begins, self.firsts))


def low_rank(a: Tensor, parts: Sequence[tuple[int, int, Tensor]]) -> PackedLowRank:
    """Pack a [ranks, n_in] and the parts of B: (first output, first rank, b [n, r]), in order, without overlaps.

    A block of 16 outputs has the ranks of all parts that it touches. Zeros stand where an output has no such rank.
    """
    n_blocks = padded(max(first + len(b) for first, _, b in parts), OUTPUTS) // OUTPUTS
    runs = [_run(block * OUTPUTS, count, parts) for block, count in _runs(n_blocks, parts)]
    lengths = [blocks.shape[1] for _, blocks in runs for _ in range(len(blocks))]
    begins = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    firsts = torch.tensor([first for first, blocks in runs for _ in range(len(blocks))], dtype=torch.int32)
    b = torch.cat([blocks.flatten(0, 1) for _, blocks in runs])
    whole = pad(a.bfloat16(), (0, -a.shape[1] % CHANNELS, 0, -len(a) % RANKS))
    tiles = whole.unflatten(1, (-1, CHANNELS)).unflatten(0, (-1, RANKS)).transpose(1, 2).contiguous()
    addresses = [tensor.data_ptr() for tensor in (tiles, b, begins, firsts)]
    record = LowRankRecord(*addresses, len(whole), tiles.shape[1], n_blocks)
    return PackedLowRank(tiles, b, begins, firsts, record)


def _runs(n_blocks: int, parts: Sequence[tuple[int, int, Tensor]]) -> Iterator[tuple[int, int]]:
    """The first and the number of blocks of 16 outputs that lie in one part; another block is alone."""
    block = 0
    while block < n_blocks:
        output = block * OUTPUTS
        inside = (first + len(b) - output for first, _, b in parts if first <= output)
        count = max(1, max(inside, default=0) // OUTPUTS)
        yield block, count
        block += count


def _run(output: int, count: int, parts: Sequence[tuple[int, int, Tensor]]) -> tuple[int, Tensor]:
    """The first rank of `count` blocks from `output` on, and their B: [count, pairs of ranks, 16, 2] bfloat16."""
    stop = output + count * OUTPUTS
    there = [(first, rank, b) for first, rank, b in parts if first < stop and output < first + len(b)]
    least = min((rank for _, rank, _ in there), default=0) // 2 * 2
    end = max((rank + b.shape[1] for _, rank, b in there), default=0)
    made = torch.zeros(padded(end - least, 2), count * OUTPUTS, dtype=torch.bfloat16)
    for first, rank, b in there:
        begin, n = max(first, output), min(first + len(b), stop) - max(first, output)
        made[rank - least :][: b.shape[1], begin - output :][:, :n] = b[begin - first :][:n].T
    pairs = made.unflatten(1, (-1, OUTPUTS)).unflatten(0, (-1, 2))  # [pairs, 2, count, 16]
    return least, pairs.permute(2, 0, 3, 1).contiguous()


class PackedRows:
    """The rows of a step that use adapters: for each adapter its entry for every projection, and its rows [n] int64."""

    def __init__(self, runs: Sequence[tuple["ctypes.Array[LowRankRecord]", Tensor]]) -> None:
        widths = [max(one.rank for one in targets) * len(rows) for targets, rows in runs]
        u = torch.empty(sum(widths))
        self._owners = (runs, u)  # keep alive the memory that the records point to
        self.records = (AdapterRows * len(runs))(
            *(
                AdapterRows(ctypes.addressof(targets), rows.data_ptr(), u[sum(widths[:i]) :].data_ptr(), len(rows))
                for i, (targets, rows) in enumerate(runs)
            )
        )


def _pointers(records: Sequence[WeightsRecord]) -> "ctypes.Array[Any]":
    return (ctypes.c_void_p * len(records))(*map(ctypes.addressof, records))


def padded(n: int, multiple: int) -> int:
    """n rounded up to a multiple."""
    return -(-n // multiple) * multiple


def int8(n_out: int, n_in: int) -> PackedWeights:
    """Memory for int8 with a scale an output."""
    packed = _records(n_out, n_in, INT8_GROUP)
    packed[-1] = 128  # outputs after the last one are zeros
    scales = torch.zeros(len(packed) * OUTPUTS)
    record = WeightsRecord(packed.data_ptr(), scales.data_ptr(), n_out, n_in, _INT8)
    return PackedWeights(n_out, n_in, INT8_GROUP, packed, scales, record)


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
    """Memory for bfloat16."""
    packed = _records(n_out, n_in, 2 * INT8_GROUP)
    packed[-1] = 0
    record = WeightsRecord(packed.data_ptr(), None, n_out, n_in, _BFLOAT16)
    return PackedWeights(n_out, n_in, INT8_GROUP, packed, None, record)


def _records(n_out: int, n_in: int, n_bytes: int) -> Tensor:
    """For groups of 64 channels, `n_bytes` an output each."""
    shape = (padded(n_out, OUTPUTS) // OUTPUTS, padded(n_in, INT8_GROUP) // INT8_GROUP, n_bytes * OUTPUTS)
    return torch.empty(shape, dtype=torch.uint8)


def blocks(n_out: int, n_in: int, n_bytes: int, *, with_minima: bool) -> PackedWeights:
    """Memory for groups of 32 channels, `n_bytes` each: 32 in 8 bits, 16 in 4."""
    width = (n_bytes + (4 if with_minima else 2)) * OUTPUTS
    packed = torch.empty(padded(n_out, OUTPUTS) // OUTPUTS, n_in // BLOCK_GROUP, width, dtype=torch.uint8)
    packed[-1] = 0
    kinds = (_Q8, _Q8_MIN) if n_bytes == BLOCK_GROUP else (_Q4, _Q4_MIN)
    record = WeightsRecord(packed.data_ptr(), None, n_out, n_in, kinds[with_minima])
    return PackedWeights(n_out, n_in, BLOCK_GROUP, packed, None, record)
