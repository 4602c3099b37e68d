"""The compiled kernels by ctypes: which variant this processor runs, argument checks, scratch memory, threads.

`kernels()` is None where the library is missing or unusable; callers then compute in plain PyTorch.
"""

import ctypes
import logging
import os
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.errors import OptionError
from model.kernels.cpu import packed
from model.kernels.cpu.build import fingerprint, library
from model.kernels.cpu.packed import PackedWeights
from model.kernels.groups import BLOCK_GROUP
from model.machine.host import choose_threads

log = logging.getLogger(__name__)

LEVELS = ("baseline", "avx2", "avx512vnni", "avx512bf16", "amx")
ENVIRONMENT = "NORIA_KERNELS"
PAGE_SIZE, MAX_QUERIES, MAX_HEAD_DIM, MAX_ROWS, SPLIT_PAGES = 32, 64, 512, 16, 16
"""Limits of attention.c."""
_POOL = threading.Lock()
"""All variants share one pool of threads, which takes one call at a time."""
_PLAIN, _NORMED, _GATED = range(3)
_FLOATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""Kinds of pack.c."""


_pointer, _integer = ctypes.c_void_p, ctypes.c_int64
LINEAR_ARGUMENTS = (_pointer, _pointer, _integer, _integer, _pointer, ctypes.c_float, _pointer, _integer, _pointer)
DRAW_ARGUMENTS = (_pointer, _integer, _integer, _pointer, _pointer)
_NETWORK_ARGUMENTS = (_pointer, _integer, _pointer, _pointer, _integer, ctypes.c_float, _pointer, _pointer)
_QUANTIZE_ARGUMENTS = (_pointer, _integer, _pointer, _integer, _integer)
_PACK_ARGUMENTS = (_pointer, _integer, _integer, _pointer, _integer, _pointer, _pointer)


class AttentionCall(ctypes.Structure):
    """One layer's attention: `call` of attention.c. Pointers to what the caller keeps alive."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("qkv", "turn", "out", "parts", "cells", "slots", "pages", "tasks", "joins")
        ),
        *(
            (name, ctypes.c_int64)
            for name in ("n_rows", "n_tasks", "n_joins", "n_heads", "n_kv_heads", "head_dim", "window", "kind")
        ),
        ("part_queries", ctypes.c_int64),
    )


class Layer(ctypes.Structure):
    """`layer` of network.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("attention_norm", "ffn_norm", "wqkv", "wo", "w13", "w2", "cells")),
        ("pool", ctypes.c_int64),
    )


class _Grid(ctypes.Structure):
    """`grid` of pack.c."""

    _fields_ = (("at", ctypes.c_void_p), ("output", ctypes.c_int64), ("group", ctypes.c_int64))

    @classmethod
    def of(cls, part: Tensor) -> "_Grid":
        """part [n, n_in/32] or [n, n_in/32, bytes], these side by side."""
        return cls(part.data_ptr(), *(stride * part.itemsize for stride in part.stride()[:2]))


DRAW = np.dtype(
    [(name, np.float32) for name in ("temperature", "min_p", "top_p")]
    + [(name, np.int32) for name in ("top_k", "start", "step")]
)
"""How a row is drawn: `params` of draw.c."""


@dataclass(slots=True)
class Kernels:
    """One variant of the kernels. Calls from several threads take turns."""

    variant: str
    _linear: Any
    _attention: Any
    _draw: Any
    _network: Any
    _quantize: Any
    _pack: Any
    _lock: threading.Lock = _POOL
    _scratch: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))

    def quantize(self, weights: PackedWeights, first: int, rows: Tensor) -> None:
        """rows [n, n_in] of floats to outputs first.. of `weights` in bfloat16 or int8, to the nearest values.

        In int8 each row's greatest magnitude becomes 127. Worked example: [1.0, -0.5] gets the scale 1/127 and becomes
        [127, -64] (-63.5 to the even neighbour).
        Raises ValueError if a value is infinite or none.
        """
        n, n_in = rows.shape
        _check_rows(weights, first, n, n_in)
        rows = rows.contiguous()
        with self._lock:
            broken = self._quantize(ctypes.byref(weights.struct), first, rows.data_ptr(), _FLOATS[rows.dtype], n)
        if broken:
            raise ValueError("a value is not finite")

    def pack(self, weights: PackedWeights, first: int, quants: Tensor, scales: Tensor, mins: Tensor | None) -> None:
        """Rows in blocks of 32 channels with a scale each, w = scale * q (+ min), to outputs first.. of `weights`.

        quants [n, n_in/32, 32] int8 (-128 counts as -127), or [n, n_in/32, 16] uint8: channel i in the low half of
        byte i and channel i + 16 in the high half, each 0..15, of which 8 is taken where there are no minima.
        scales, mins [n, n_in/32] float16. All may be views of a file's bytes.
        """
        n, n_groups, n_bytes = quants.shape
        _check_rows(weights, first, n, n_groups * BLOCK_GROUP)
        parts = [None if part is None else ctypes.byref(_Grid.of(part)) for part in (quants, scales, mins)]
        with self._lock:
            self._pack(ctypes.byref(weights.struct), first, n, parts[0], n_bytes, parts[1], parts[2])

    def linear(
        self,
        weights: PackedWeights,
        x: Tensor,
        *,
        norm: Tensor | None = None,
        eps: float = 0.0,
        gated: bool = False,
        onto: Tensor | None = None,
    ) -> Tensor:
        """W x, as a new [T, n_out] or added to `onto`; x [T, n_in] float32.

        With `norm` [n_in], x is RMS-normalised and scaled first; with `gated`, x [T, 2 n_in] becomes silu(gate) * up.
        """
        width = weights.n_in * (1 + gated)
        x = _floats(x, width)
        n_rows = x.shape[0]
        y = x.new_empty(n_rows, weights.n_out) if onto is None else onto
        if onto is not None and (onto.dtype is not torch.float32 or onto.shape != (n_rows, weights.n_out)):
            raise ValueError(f"cannot add [{n_rows}, {weights.n_out}] to {onto.dtype} {list(onto.shape)}")
        if norm is not None and (norm.dtype is not torch.float32 or len(norm) != weights.n_in):
            raise ValueError(f"expected a float32 norm of {weights.n_in} values, got {norm.dtype} {list(norm.shape)}")
        kind = _GATED if gated else _PLAIN if norm is None else _NORMED
        with self._lock:
            self._linear(
                ctypes.byref(weights.struct),
                x.data_ptr(),
                n_rows,
                kind,
                None if norm is None else norm.data_ptr(),
                eps,
                y.data_ptr(),
                onto is not None,
                self._room(weights.scratch_bytes(n_rows)),
            )
        return y

    def attention(self, call: AttentionCall) -> None:
        """Store keys and values, then attend."""
        with self._lock:
            self._attention(ctypes.byref(call))

    def network(
        self,
        layers: "ctypes.Array[Layer]",
        pools: "ctypes.Array[AttentionCall]",
        x: Tensor,
        eps: float,
        gate_up: Tensor,
        scratch_bytes: int,
    ) -> None:
        """All layers over x [T, dim] float32, replaced; what `pools` point to, gate_up [T, 2 hidden_dim] is theirs."""
        with self._lock:
            room = self._room(scratch_bytes)
            self._network(layers, len(layers), pools, x.data_ptr(), len(x), eps, gate_up.data_ptr(), room)

    def draw(self, logits: Tensor, rows: NDArray[np.void]) -> Tensor:
        """Tokens [N] int64 drawn from logits [N, vocab_size] float32, overwritten, as `rows` [N] of DRAW say."""
        if rows.dtype != DRAW or logits.dtype is not torch.float32 or len(rows) != len(logits):
            raise ValueError(f"expected {len(logits)} rows of {DRAW} and float32 logits, got {logits.dtype}")
        tokens = torch.empty(len(logits), dtype=torch.int64)
        with self._lock:
            self._draw(logits.data_ptr(), len(logits), logits.shape[1], rows.ctypes.data, tokens.data_ptr())
        return tokens

    def _room(self, n_bytes: int) -> int:
        if len(self._scratch) < n_bytes:
            self._scratch = torch.empty(2 * n_bytes, dtype=torch.uint8)
        return self._scratch.data_ptr()


def _check_rows(weights: PackedWeights, first: int, n: int, n_in: int) -> None:
    if n_in != weights.n_in or not 0 <= first <= weights.n_out - n:
        raise ValueError(f"rows {first}..{first + n - 1} of {n_in} are not in {weights.n_out} of {weights.n_in}")


def _floats(x: Tensor, width: int) -> Tensor:
    if x.dim() != 2 or x.shape[1] != width:
        raise ValueError(f"expected rows of {width} values, got {list(x.shape)}")
    return x if x.dtype is torch.float32 and x.is_contiguous() else x.float().contiguous()


@cache
def available() -> tuple[str, ...]:
    """Variants that are compiled and that this processor runs, the best first."""
    compiled = _library()
    if compiled is None:
        return ()
    names = [name for name in LEVELS[compiled.noria_level() :: -1] if hasattr(compiled, f"linear_{name}")]
    if names[0] == "amx" and not _agree("amx", names[1]):
        log.warning("products by AMX differ from those by %s on this machine; %s serves", names[1], names[1])
        del names[0]
    return tuple(names)


def _agree(first: str, second: str) -> bool:
    """Whether two variants give the same bits, on a product that takes every path through a tile."""
    source = torch.Generator().manual_seed(0)
    weight, x = torch.randn(48, 192, generator=source), torch.randn(40, 192, generator=source)
    quants = torch.randint(0, 256, (48, 6, 16), generator=source, dtype=torch.uint8)
    halves = torch.ones(48, 6, dtype=torch.float16)
    rows, blocks = packed.int8(48, 192), packed.blocks(48, 192, 16, with_minima=True)
    variant(second).quantize(rows, 0, weight)
    variant(second).pack(blocks, 0, quants, halves, halves)
    return all(
        torch.equal(variant(first).linear(weights, x), variant(second).linear(weights, x)) for weights in (rows, blocks)
    )


@cache
def variant(name: str) -> Kernels:
    """The kernels called `name`, one of `available()`."""
    compiled = _library()
    assert compiled is not None
    arguments = {
        "linear": LINEAR_ARGUMENTS,
        "attention": (_pointer,),
        "draw": DRAW_ARGUMENTS,
        "network": _NETWORK_ARGUMENTS,
        "quantize": _QUANTIZE_ARGUMENTS,
        "pack": _PACK_ARGUMENTS,
    }
    functions = [getattr(compiled, f"{kernel}_{name}") for kernel in arguments]
    for function, types in zip(functions, arguments.values(), strict=True):
        function.argtypes, function.restype = types, ctypes.c_int if types is _QUANTIZE_ARGUMENTS else None
    return Kernels(name, *functions)


def kernels() -> Kernels | None:
    """The best kernels there are; None means plain PyTorch.

    The variable NORIA_KERNELS names a variant or "torch". Raises OptionError if that variant is not there.
    """
    asked, known = os.environ.get(ENVIRONMENT, ""), available()
    if asked == "torch" or (not asked and not known):
        return None
    if asked and asked not in known:
        raise OptionError(f"{ENVIRONMENT}={asked} is not there, choose one of: {', '.join((*known, 'torch'))}")
    return variant(asked or known[0])


def describe(chosen: Kernels | None) -> str:
    """For the log: "native avx2" or "torch"."""
    return "torch" if chosen is None else f"native {chosen.variant}"


def use_threads(n: int) -> int:
    """Compute with n threads, the calling one included; returns the number there are."""
    compiled = _library()
    with _POOL:  # a call that runs has divided its work among the threads that there were
        return 1 if compiled is None else int(compiled.noria_threads(n))


@cache
def _library() -> ctypes.CDLL | None:
    try:
        compiled = ctypes.CDLL(str(library()))
        compiled.noria_fingerprint.restype = ctypes.c_char_p
        if compiled.noria_fingerprint().decode() != fingerprint():
            raise OSError(f"{library().name} was built from other sources")
    except (OSError, AttributeError) as error:
        log.warning("no compiled kernels, PyTorch serves (%s); build them: python -m model.kernels.cpu.build", error)
        return None
    compiled.noria_threads(choose_threads())
    return compiled
