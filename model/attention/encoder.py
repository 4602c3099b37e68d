"""Attention inside one media item: every patch sees all patches of its item (Pixtral, arXiv 2410.07073).

A patch is a square of an image, or 20 ms of audio.

The patches come in tiles. A layer first stores the queries, keys and values of all tiles, then it attends tile by tile.
The next layer uses the same memory.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model.attention.rope import rotate
from model.kernels.cpu import records
from model.kernels.cpu.functions import Kernels

COMPILED = frozenset((torch.bfloat16, torch.float32))
"""Types of keys and values that the compiled kernels serve here."""


class EncoderAttention(ABC):
    """The queries, keys and values of one item of P patches in one layer."""

    def __init__(self, rotations: Tensor, n_heads: int) -> None:
        """Take `rotations` [P, 2, head_dim/2] float32: cosines and sines for q and k, in the pairs of rope.py."""
        self._rotations = rotations
        self._n_heads = n_heads
        self._shape = len(rotations), n_heads, 2 * rotations.shape[2]  # P, heads, head_dim

    @abstractmethod
    def store(self, first: int, qkv: Tensor) -> None:
        """Keep the rows of patches first.., not rotated yet: qkv [n, 3 n_heads, head_dim], q, k and v side by side."""

    @abstractmethod
    def attend(self, first: int, n: int) -> Tensor:
        """Return the attention of patches first..first+n-1 over all patches, [n, n_heads, head_dim]."""


class CompiledEncoderAttention(EncoderAttention):
    """The attention of the compiled kernels, float32 inside and out.

    Keys, values and the factors beside them have `dtype`, bfloat16 or float32. The bits of a row depend on its query
    and on the item's keys, but on no tile and on no number of threads.
    """

    def __init__(self, rotations: Tensor, n_heads: int, dtype: torch.dtype, kernels: Kernels) -> None:
        super().__init__(rotations, n_heads)
        n_patches, _, head_dim = self._shape
        n_pages = -(-n_patches // records.PAGE_SIZE)
        self._kernels = kernels
        self._kind = records.CELL_KINDS[dtype]
        self._q = _empty(*self._shape)
        self._cells = torch.empty(n_pages, 2, records.PAGE_SIZE, n_heads, head_dim, dtype=dtype, device="cpu")
        self._slots, self._pages = (torch.arange(n, device="cpu") for n in (n_patches, n_pages))

    def store(self, first: int, qkv: Tensor) -> None:
        qkv = qkv.float()
        self._q[first : first + len(qkv)] = qkv[:, : self._n_heads]
        call = self._call(first, qkv)
        call.slots, call.n_rows = records.pointer("slots", self._slots[first:], torch.int64), len(qkv)
        self._kernels.attention(call)

    def attend(self, first: int, n: int) -> Tensor:
        _, n_heads, head_dim = self._shape
        qkv = _empty(n, 3 * n_heads, head_dim)  # the kernel reads the queries only
        qkv[:, :n_heads] = self._q[first : first + n]
        out = _empty(n, n_heads, head_dim)
        call = self._call(first, qkv)
        call.out = records.floats("out", out)
        self._kernels.plan(call, torch.tensor([[0, n, 0, 0, 0]], device="cpu"))
        self._kernels.attention(call)
        return out

    def _call(self, first: int, qkv: Tensor) -> Any:
        n_patches, n_heads, head_dim = self._shape
        return records.struct("attention_call")(
            qkv=records.floats("qkv", qkv),
            rotations=records.floats("rotations", self._rotations[first:]),
            cells=records.pointer("cells", self._cells, *COMPILED),
            pages=records.pointer("pages", self._pages, torch.int64),
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=head_dim,
            kind=self._kind,
            n_keys=n_patches,
        )


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")


class PlainEncoderAttention(EncoderAttention):
    """The attention of PyTorch, in `dtype`, on any device."""

    def __init__(self, rotations: Tensor, n_heads: int, dtype: torch.dtype) -> None:
        super().__init__(rotations, n_heads)
        self._qkv = torch.empty(3, *self._shape, dtype=dtype, device=rotations.device)

    def store(self, first: int, qkv: Tensor) -> None:
        rows = slice(first, first + len(qkv))
        rotated = rotate(qkv[:, : 2 * self._n_heads], self._rotations[rows])
        self._qkv[0, rows], self._qkv[1, rows] = rotated.chunk(2, dim=1)
        self._qkv[2, rows] = qkv[:, 2 * self._n_heads :]

    def attend(self, first: int, n: int) -> Tensor:
        q, k, v = self._qkv.transpose(1, 2)  # [n_heads, P, head_dim] each
        attended = scaled_dot_product_attention(q[None, :, first : first + n], k[None], v[None])
        return attended[0].transpose(0, 1)


def encoder_attention(rotations: Tensor, n_heads: int, dtype: torch.dtype, kernels: Kernels | None) -> EncoderAttention:
    """Return the attention for one item with these rotations, with keys and values in `dtype`.

    The compiled `kernels` serve where they know the type and the size of heads.
    """
    if kernels is None or dtype not in COMPILED or 2 * rotations.shape[2] > records.MAX_HEAD_DIM:
        return PlainEncoderAttention(rotations, n_heads, dtype)
    return CompiledEncoderAttention(rotations, n_heads, dtype, kernels)
