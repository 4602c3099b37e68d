"""The compiled kernels as functions of tensors: they check arguments, own scratch memory and run one at a time."""

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.kernels.cpu.build import suffix
from model.kernels.cpu.low_rank import PackedRows
from model.kernels.cpu.packed import PackedExperts, PackedWeights, block_format
from model.kernels.cpu.records import (
    FLOAT_KINDS,
    FORMATS,
    GATED,
    NO_MEMORY,
    NO_PAGE,
    NORMED,
    NOT_JOINED,
    OUTSIDE,
    PLAIN,
    SUPERBLOCK,
    SUPERBLOCK_BYTES,
    floats,
    pointer,
    sampling,
    struct,
)
from model.kernels.groups import BLOCK_GROUP, MXFP4_GROUP, NVFP4_GROUP

POOL = threading.Lock()
"""All variants share one pool of threads, which takes one call at a time."""
_REFUSALS = {
    NO_PAGE: "a sequence has no page for one of its positions",
    OUTSIDE: "a token, position, adapter or row of an image is out of range",
}
"""Why `step` refuses a step."""
E4M3_UNIT = 2.0**8
"""The kernels read e4m3 as float16, which has another bias: a scale counts as so many times less."""
_pointer, _integer = ctypes.c_void_p, ctypes.c_int64
_JOIN = ctypes.CFUNCTYPE(_integer)
ARGUMENTS = {
    "linear": (
        *(_pointer, _pointer, _integer, _integer, _pointer, ctypes.c_float),
        *(_pointer, _integer, _pointer, _integer, _pointer, _integer),
    ),
    "plan": (_pointer, _pointer, _integer, _pointer),
    "attention": (_pointer,),
    "sample": (_pointer, _integer, _integer, _pointer, _pointer),
    "quantize": (_pointer, _integer, _pointer, _integer, _integer),
    "pack": (_pointer, _integer, _integer, _pointer, _integer, _pointer, _pointer),
    "pack_superblocks": (_pointer, _integer, _integer, _pointer, _integer),
    "pack_fp4": (_pointer, _integer, _integer, _pointer, _integer, _pointer, _integer),
    "experts": (_pointer, _pointer, _integer, _pointer, ctypes.c_float, _pointer, _pointer, _integer),
    "step": (_pointer, _pointer, _pointer, _integer),
}
"""Argument types of each kernel. Those that return something return a number."""


class Kernels:
    """One variant of the kernels. Only one thread at a time is inside a call."""

    def __init__(self, library: ctypes.CDLL, variant: str) -> None:
        self.variant = variant
        self._call = {name: getattr(library, f"{name}_{suffix(variant)}") for name in ARGUMENTS}
        for name, function in self._call.items():
            function.argtypes, function.restype = ARGUMENTS[name], _integer
        self._lock, self._scratch = POOL, _bytes(0)

    @property
    def scratch_bytes(self) -> int:
        """Return the bytes of scratch memory that it has: those of the largest call so far, and a quarter more."""
        return len(self._scratch)

    def quantize(self, weights: PackedWeights, first: int, rows: Tensor) -> None:
        """Store rows [n, n_in] of floats as outputs first.. of `weights`, rounded to bfloat16 or int8.

        In int8 each row's greatest magnitude becomes 127. Worked example: [1.0, -0.5] gets the scale 1/127 and becomes
        [127, -64] (-63.5 to the even neighbour).
        Raises ValueError if a value is not finite.
        """
        n, n_in = rows.shape
        _check_rows(weights, first, n, n_in)
        _check_format(weights, "int8", "bfloat16")
        rows = rows.contiguous()
        at = pointer("rows", rows, *FLOAT_KINDS)
        with self._lock:
            broken = self._call["quantize"](ctypes.byref(weights.record), first, at, FLOAT_KINDS[rows.dtype], n)
        if broken:
            raise ValueError("a value is not finite")

    def pack(self, weights: PackedWeights, first: int, quants: Tensor, scales: Tensor, mins: Tensor | None) -> None:
        """Store rows in blocks of 32 channels, w = scale * q (+ min), as outputs first.. of `weights`.

        quants [n, n_in/32, 32] int8 (-128 counts as -127), or [n, n_in/32, 16] uint8: channel i in the low half of
        byte i and channel i + 16 in the high half. Each q is 0..15, and 8 less where there are no minima.
        scales, mins [n, n_in/32] float16. All may be views of a file's bytes.
        """
        n, n_groups, n_bytes = quants.shape
        _check_rows(weights, first, n, n_groups * BLOCK_GROUP)
        _check_format(weights, FORMATS[block_format(n_bytes, mins is not None)])
        grids = [
            _grid("quants", quants, torch.int8 if n_bytes == BLOCK_GROUP else torch.uint8),
            *(_grid_of_halves(name, part, n, n_groups) for name, part in (("scales", scales), ("mins", mins))),
        ]
        at = [None if grid is None else ctypes.byref(grid) for grid in grids]
        with self._lock:
            self._call["pack"](ctypes.byref(weights.record), first, n, at[0], n_bytes, at[1], at[2])

    def pack_superblocks(self, weights: PackedWeights, first: int, rows: Tensor) -> None:
        """Store rows uint8 [n, n_in/256 * 144], blocks of Q4_K, as outputs first.. of `weights`.

        Their factors times 63 must be finite in float16.
        """
        n, n_bytes = rows.shape
        _check_rows(weights, first, n, n_bytes // SUPERBLOCK_BYTES * SUPERBLOCK)
        _check_format(weights, "q4_k")
        at = pointer("rows", rows, torch.uint8, dense=False)
        if rows.stride(1) != 1:
            raise ValueError(f"rows must have their bytes side by side, got strides {list(rows.stride())}")
        with self._lock:
            self._call["pack_superblocks"](ctypes.byref(weights.record), first, n, at, rows.stride(0))

    def pack_fp4(self, weights: PackedWeights, first: int, codes: Tensor, scales: Tensor, factor: float) -> None:
        """Store rows of 4-bit floats as outputs first.. of `weights`, w = value * scale * factor.

        codes uint8 [n, n_in/2], the even channel in the low half of a byte; scales uint8 [n, n_in/16] in e4m3, not
        negative, or [n, n_in/32] exponents of 2^(e - 127). Both may be views of a file's bytes. What is not finite is
        not found here.
        """
        n, n_in = len(codes), codes.shape[1] * 2
        _check_rows(weights, first, n, n_in)
        _check_format(weights, "nvfp4", "mxfp4")
        is_nvfp4 = FORMATS[weights.record.format] == "nvfp4"
        if scales.shape != (n, n_in // (NVFP4_GROUP if is_nvfp4 else MXFP4_GROUP)):
            raise ValueError(f"scales of {list(scales.shape)} do not fit {FORMATS[weights.record.format]} of {n_in}")
        codes, scales = (part if part.stride(1) == 1 else part.contiguous() for part in (codes, scales))
        at = [pointer(name, part, torch.uint8, dense=False) for name, part in (("codes", codes), ("scales", scales))]
        with self._lock:
            self._call["pack_fp4"](
                ctypes.byref(weights.record), first, n, at[0], codes.stride(0), at[1], scales.stride(0)
            )
        assert weights.scales is not None
        weights.scales[first : first + n] = factor * (E4M3_UNIT if is_nvfp4 else 1) / 2  # integers are twice the values

    def linear(
        self,
        weights: PackedWeights,
        x: Tensor,
        *,
        norm: Tensor | None = None,
        eps: float = 0.0,
        gated: bool = False,
        onto: Tensor | None = None,
        adapters: PackedRows | None = None,
    ) -> Tensor:
        """Compute W x, as a new [T, n_out] or added to `onto`; x [T, n_in] float32.

        With `norm` [n_in], x is RMS-normalised and scaled first; with `gated`, x [T, 2 n_in] becomes silu(gate) * up.
        The rows of `adapters` get the first product of theirs.
        """
        x = _floats(x, weights.n_in * (1 + gated))
        y = x.new_empty(len(x), weights.n_out) if onto is None else onto
        kind = GATED if gated else PLAIN if norm is None else NORMED
        x_at, norm_at, y_at = floats("x", x), _norm(norm, weights.n_in), _target(y, len(x), weights.n_out)
        arguments = x_at, len(x), kind, norm_at, eps, y_at, onto is not None
        runs = (None, 0) if adapters is None else (adapters.records, len(adapters.records))
        with self._lock:
            self._call_with_scratch("linear", ctypes.byref(weights.record), *arguments, *runs)
        return y

    def experts(self, block: PackedExperts, x: Tensor, *, norm: Tensor | None, eps: float, onto: Tensor) -> Tensor:
        """Compute a block of sparse experts over x [T, dim] float32, RMS-normalised with `norm` [dim], added to `onto`.

        `onto` [T, dim] may be x.
        """
        x = _floats(x, block.n_in)
        scale = None if norm is None else _floats(norm[None], block.n_in)[0]
        x_at, norm_at, y_at = floats("x", x), _norm(scale, block.n_in), _target(onto, *x.shape)
        with self._lock:
            self._call_with_scratch("experts", ctypes.byref(block.record), x_at, len(x), norm_at, eps, y_at)
        return onto

    def plan(self, call: Any, spans: Tensor) -> None:
        """Divide the attention of `spans` [S, 5] int64 into tasks, and allocate the memory of these in `call`.

        The columns of a span are those of `attention.inputs.Span`.
        """
        arguments = ctypes.byref(call), pointer("spans", spans, torch.int64), len(spans)
        call.memory = _bytes(self._call["plan"](*arguments, None))
        self._call["plan"](*arguments, pointer("memory", call.memory, torch.uint8))

    def attention(self, call: Any) -> None:
        """Store keys and values, then attend."""
        with self._lock:
            self._call["attention"](ctypes.byref(call))

    @staticmethod
    def row_type() -> np.dtype[np.void]:
        """Return the type of `rows` of `sample`."""
        return sampling()

    def sample(self, logits: Tensor, rows: NDArray[np.void]) -> Tensor:
        """Sample tokens [N] int64 from logits [N, vocab_size] float32, which it overwrites.

        `rows` [N] are `sampling()`. Raises MemoryError if there is no memory for top_k or top_p.
        """
        if rows.dtype != sampling() or len(rows) != len(logits) or not rows.flags.c_contiguous:
            raise ValueError(
                f"expected {len(logits)} contiguous rows of {sampling()}, got {rows.shape} of {rows.dtype}"
            )
        tokens = torch.empty(len(logits), dtype=torch.int64, device="cpu")
        at, tokens_at = floats("logits", logits), pointer("tokens", tokens, torch.int64)
        with self._lock:
            no_memory = self._call["sample"](at, len(logits), logits.shape[1], rows.ctypes.data, tokens_at)
        if no_memory:
            raise MemoryError("no memory to sample tokens")
        return tokens

    def step(self, network: Any, step: Any, join: Callable[[], None] | None = None) -> None:
        """Compute a whole step, see step.h. If it has a `part`, `join` adds the parts of all ranks to x.

        Raises ValueError for a step that does not fit the network, MemoryError without memory for top_k or top_p, and
        what `join` raises.
        """
        errors: list[BaseException] = []
        if join is not None:
            function = _JOIN(partial(self._join, join, errors))
            step.join = _pointer.from_buffer(function).value  # a cast would make a cycle that holds the rows of `join`
        with self._lock:
            status = self._call_with_scratch("step", ctypes.byref(network), ctypes.byref(step))
        if status == NOT_JOINED:
            raise errors[0]
        if status == NO_MEMORY:
            raise MemoryError("no memory to sample tokens")
        if status:
            raise ValueError(_REFUSALS[status])

    def _join(self, join: Callable[[], None], errors: list[BaseException]) -> int:
        """Do `join` for C without the lock, because it waits for other ranks. Returns the number of errors."""
        self._lock.release()
        try:
            join()
        except BaseException as error:
            errors.append(error)
        finally:
            self._lock.acquire()
        return len(errors)

    def _call_with_scratch(self, name: str, *arguments: Any) -> int:
        """Call a kernel that returns how many bytes of scratch memory it needs, if there are fewer.

        While a step joins ranks, another thread may call: it gets memory of its own.
        """
        call, scratch = self._call[name], self._scratch
        self._scratch = _bytes(0)
        while (status := int(call(*arguments, pointer("scratch", scratch, torch.uint8), len(scratch)))) > 0:
            scratch = _bytes(status + status // 4)
        self._scratch = scratch
        return status


def _bytes(n: int) -> Tensor:
    return torch.empty(n, dtype=torch.uint8, device="cpu")


def _check_rows(weights: PackedWeights, first: int, n: int, n_in: int) -> None:
    if n_in != weights.n_in or not 0 <= first <= weights.n_out - n:
        raise ValueError(f"rows {first}..{first + n - 1} of {n_in} are not in {weights.n_out} of {weights.n_in}")


def _check_format(weights: PackedWeights, *formats: str) -> None:
    """Check the format: C writes records as large as the caller's data, and others would end beyond the memory."""
    if FORMATS[weights.record.format] not in formats:
        raise ValueError(
            f"weights have the layout {FORMATS[weights.record.format]}, the rows fit {' or '.join(formats)}"
        )


def _grid(name: str, part: Tensor, dtype: torch.dtype) -> Any:
    """Make a `grid` of pack.c: part [n, n_in/32] or [n, n_in/32, bytes], with the bytes side by side."""
    if part.dim() == 3 and part.stride(2) != 1:
        raise ValueError(f"{name} must have the bytes of a group side by side, got strides {list(part.stride())}")
    output, group = (stride * part.itemsize for stride in part.stride()[:2])
    return struct("grid")(at=pointer(name, part, dtype, dense=False), output=output, group=group)


def _grid_of_halves(name: str, part: Tensor | None, n: int, n_groups: int) -> Any:
    if part is not None and part.shape != (n, n_groups):
        raise ValueError(f"{name} must have shape [{n}, {n_groups}], got {list(part.shape)}")
    return None if part is None else _grid(name, part, torch.float16)


def _norm(norm: Tensor | None, n_in: int) -> int | None:
    if norm is not None and norm.shape != (n_in,):
        raise ValueError(f"expected a norm of {n_in} values, got {list(norm.shape)}")
    return None if norm is None else floats("norm", norm)


def _target(y: Tensor, n_rows: int, n_out: int) -> int:
    if y.shape != (n_rows, n_out):
        raise ValueError(f"cannot add [{n_rows}, {n_out}] to {list(y.shape)}")
    return floats("y", y)


def _floats(x: Tensor, width: int) -> Tensor:
    if x.dim() != 2 or x.shape[1] != width:
        raise ValueError(f"expected rows of {width} values, got {list(x.shape)}")
    return x if x.dtype is torch.float32 and x.is_contiguous() else x.float().contiguous()
