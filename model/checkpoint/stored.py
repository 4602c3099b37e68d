"""A weight as a checkpoint has it. Any part can be cut out, and only a scheme that needs floats decodes it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from model.checkpoint.blocks import Blocks, check_finite, joined
from model.checkpoint.gguf import blocks as gguf
from model.checkpoint.gguf.index import KINDS
from model.kernels.groups import BLOCK_GROUP, NVFP4_GROUP

VALUES_AT_ONCE = 2**18
"""Values that are decoded or quantized at once: float32 copies then take 1 MiB, which the cache of a core holds."""
GPU_VALUES_AT_ONCE = 2**25
"""The same for what is in the memory of a GPU, where each piece takes a few launches."""
FP4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""The magnitudes by the lower three bits of a code; the upper bit is the sign."""
LARGEST_NVFP4 = 6.0 * 448.0
"""The largest value before the factor."""
LARGEST_EXPONENT = 252
"""The greatest scale of MXFP4 with which 6 is still a float32."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A weight in one of these layouts:

    - "floats": `values` are the weight, of any shape. All other layouts are matrices [n_out, n_in].
    - "groups": w = (value - zero) * scale. `values` [n_out, n_in] are fp8, floats, int8, or 4 bits in uint8. `scales`
      and `zeros` are [n_out, n_groups], None for no zeros. Each `group` neighbouring channels share a scale, and the
      last group may be smaller; or `channels` [n_in] has the group of each channel. Without scales the values are
      floats among such weights: a scheme that has 4 bits for a checkpoint of floats gives them 8.
    - "fp4": w = value * scale * `factor`. `values` uint8 [n_out, n_in/2] have the even channel in the lower half of a
      byte. `scales` are uint8 [n_out, n_in/group]: e4m3 in groups of 16 (NVFP4), exponents of 2^(e - 127) in groups
      of 32 (MXFP4).
    - "gguf": `values` are uint8 [n_out, bytes of a row], whole blocks of GGUF's `kind`.

    `own` are its channels among those of `values`, None for all: a part may begin and end within a group or a block.
    """

    values: Tensor
    layout: Literal["floats", "groups", "fp4", "gguf"] = "floats"
    scales: Tensor | None = None
    group: int = 1
    zeros: Tensor | None = None
    channels: Tensor | None = None
    factor: float = 1.0
    kind: str = ""
    own: range | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the weight."""
        return tuple(self.values.shape) if self.layout == "floats" else (len(self.values), len(self._own))

    @property
    def is_whole(self) -> bool:
        """Return whether it has all channels of `values`."""
        return len(self._own) == self._width

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | Tensor) -> "Stored":
        """Select rows, in any order."""
        scales, zeros = (None if table is None else table[rows] for table in (self.scales, self.zeros))
        return replace(self, values=self.values[rows], scales=scales, zeros=zeros)

    def columns(self, columns: range) -> "Stored":
        """Select neighbouring input channels. The others of the first and the last group or block stay in `values`."""
        first, stop = self._own.start + columns.start, self._own.start + columns.stop
        grain, (channels, width) = self._grain, self._unit
        begin, end = first // grain * grain, min(-(-stop // grain) * grain, self._width)
        cut = slice(None) if grain == 1 else slice(begin // self.group, -(-end // self.group))
        scales, zeros = (None if table is None else table[:, cut] for table in (self.scales, self.zeros))
        return replace(
            self,
            values=self.values[:, begin // channels * width : end // channels * width],
            scales=scales,
            zeros=zeros,
            channels=None if self.channels is None else self.channels[begin:end],
            own=range(first - begin, stop - begin),
        )

    def part(self, rows: range | None = None, columns: range | None = None) -> "Stored":
        """Cut out these rows and columns, None for all: of a weight that is mapped from a file, only these are read."""
        own = self if rows is None else self[rows.start : rows.stop]
        return own if columns is None else own.columns(columns)

    def to(self, device: torch.device) -> "Stored":
        """Upload it to a device; GGUF's blocks and 4-bit floats stay on the host, where they are decoded."""
        if self.layout in ("gguf", "fp4"):
            return self
        tables = (None if table is None else table.to(device) for table in (self.scales, self.zeros, self.channels))
        scales, zeros, channels = tables
        return replace(self, values=self.values.to(device), scales=scales, zeros=zeros, channels=channels)

    def pieces(self) -> Iterator["Stored"]:
        """Yield it in pieces of whole rows, as many as fit at once."""
        most = GPU_VALUES_AT_ONCE if self.values.is_cuda else VALUES_AT_ONCE
        width = self.shape[1] if len(self.shape) > 1 else 1
        step = max(16, most // width // 16 * 16)  # the CPU's kernels store 16 outputs together
        for first in range(0, len(self), step):
            yield self[first : first + step]

    def parts(self) -> Iterator[Tensor]:
        """Yield `floats` of its `pieces`, [n, n_in]."""
        return (piece.floats() for piece in self.pieces())

    def floats(self) -> Tensor:
        """Decode to float32 [n_out, n_in]; floats come as they are. Raises ValueError as `check_fp4` does."""
        if self.layout == "floats":
            return self.values
        if self.layout == "gguf":
            return gguf.floats(self.values, self.kind, self._own)
        whole = self._fp4_floats() if self.layout == "fp4" else self._group_floats()
        return whole[:, self._own.start : self._own.stop]

    def by_row(self, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Return values [n_out, n_in] of this type, int8 or fp8, and scales [n_out] float32; None for any other weight.

        Raises ValueError for a value or a scale that is not finite.
        """
        if self.values.dtype is not dtype or self.zeros is not None or not self._has_one_scale:
            return None
        values = self._own_values
        if dtype is torch.float8_e4m3fn and (values.view(torch.uint8) & 127).eq(127).any():
            raise ValueError("a value is not finite")
        return values, check_finite(self.scales[:, 0].float())  # type: ignore[index]  # it has one

    def four_bits(self, size: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return q uint8 [n_out, n_in/size, size], scales and zeros [n_out, n_in/size]; None for any other weight.

        w = (q - zero) * scale. Raises ValueError for a scale that is not finite.
        """
        if not self._is_narrow or (tables := self._tables(size)) is None:
            return None
        scales, zeros = tables
        assert zeros is not None, "integers of 4 bits have zeros"
        return self._own_values.unflatten(1, (-1, size)), check_finite(scales), zeros

    @property
    def is_blocks(self) -> bool:
        """Return whether `blocks` are a view of the file's bytes."""
        return self.kind in gguf.AS_THEY_ARE

    @property
    def is_superblocks(self) -> bool:
        """Return whether it has whole blocks of Q4_K, whose scales and minima are finite in float16."""
        return self.kind == "Q4_K" and self.is_whole and gguf.fit_float16(self.values)

    def blocks(self) -> Blocks | None:
        """Return the same integers, or those nearest to GGUF's kind, in blocks with tables in float16; None for others.

        There are no minima if every zero is the middle of the range. Raises ValueError for a scale that is not finite.
        """
        if self.layout == "gguf":
            return gguf.blocks(self.values, self.kind, self._own).checked()
        if (tables := self._tables(BLOCK_GROUP)) is None:
            return None
        q, (scales, zeros), minima = self._own_values.unflatten(1, (-1, BLOCK_GROUP)), tables, None
        if zeros is not None and not (self._is_narrow and zeros.eq(8).all()):
            minima = (scales.float() * -zeros.float()).half()
        return Blocks(joined(q) if self._is_narrow else q, scales.half(), minima).checked()

    def check_fp4(self) -> None:
        """Raise ValueError for a scale that is not finite, or negative, or with which a value is not finite."""
        is_nvfp4 = self.group == NVFP4_GROUP
        assert self.scales is not None, "4-bit floats have scales"
        if self.scales.ge(127 if is_nvfp4 else LARGEST_EXPONENT + 1).any():
            raise ValueError("a scale is not finite, or negative, or too large")
        if is_nvfp4 and self.factor * LARGEST_NVFP4 > torch.finfo(torch.float32).max:
            raise ValueError(f"its global factor {self.factor:.3g} is too large")

    @property
    def _unit(self) -> tuple[int, int]:
        """Return how many neighbouring channels share elements of a row of `values`, and how many elements that are."""
        return KINDS[self.kind][1:] if self.layout == "gguf" else (2 if self.layout == "fp4" else 1, 1)

    @property
    def _grain(self) -> int:
        """Return the size of a group or a block, which a cut keeps whole; 1 where any channels can be cut out."""
        if self.layout in ("gguf", "fp4"):
            return max(BLOCK_GROUP, self._unit[0])
        return 1 if self.scales is None or self.channels is not None or self._has_one_scale else self.group

    @property
    def _width(self) -> int:
        channels, width = self._unit
        return self.values.shape[1] // width * channels

    @property
    def _own(self) -> range:
        return range(self._width) if self.own is None else self.own

    @property
    def _own_values(self) -> Tensor:
        return self.values[:, self._own.start : self._own.stop]

    @property
    def _has_one_scale(self) -> bool:
        """Return whether each output has one scale."""
        return self.scales is not None and self.scales.shape[1] == 1 and self.channels is None

    @property
    def _is_narrow(self) -> bool:
        """Return whether its integers have 4 bits."""
        return self.values.dtype is torch.uint8

    def _tables(self, size: int) -> tuple[Tensor, Tensor | None] | None:
        """Return scales and zeros of groups of `size` channels [n_out, n_in/size]; None where they do not fit."""
        own, one = self._own, self._has_one_scale
        is_integers = self.layout == "groups" and self.values.dtype in (torch.int8, torch.uint8)
        if not is_integers or self.scales is None or self.channels is not None or len(own) % size:
            return None
        if not one and (self.group % size or own.start % size):
            return None  # a group would have two scales, or be cut

        def spread(table: Tensor) -> Tensor:
            if one:
                return table.expand(-1, len(own) // size)
            return table.repeat_interleave(self.group // size, dim=1)[:, own.start // size : own.stop // size]

        return spread(self.scales), None if self.zeros is None else spread(self.zeros)

    def _group_floats(self) -> Tensor:
        values, n = self.values.float(), self._width
        for table, apply in ((self.zeros, Tensor.sub_), (self.scales, Tensor.mul_)):
            if table is not None and self.channels is None and table.shape[1] * self.group == n:
                apply(values.unflatten(1, (-1, self.group)), table.float()[:, :, None])
            elif table is not None:  # the last group is smaller, or a cut left some channels of one scale
                groups = torch.arange(n, device=table.device) // self.group if self.channels is None else self.channels
                apply(values, table.float()[:, groups])
        return values

    def _fp4_floats(self) -> Tensor:
        """Decode all channels; only the product with `factor` rounds."""
        self.check_fp4()
        assert self.scales is not None, "4-bit floats have scales"
        codes = torch.stack((self.values & 15, self.values >> 4), dim=2).flatten(1)
        values = FP4_VALUES[(codes & 7).int()] * (1 - 2 * (codes >> 3).float())
        if self.group == NVFP4_GROUP:
            scales = self.scales.view(torch.float8_e4m3fn).float()
        else:
            scales = (self.scales.int() << 23).view(torch.float32)  # the exponent's bits; 2^-127 counts as 0
        return (values.unflatten(1, (-1, self.group)) * scales[:, :, None]).flatten(1).mul_(self.factor)
