"""Memory for weights, on large pages where Linux has them.

A step reads all weights once, and small pages would cost misses of address translation. Where the system gives no large
pages, it is plain memory.
"""

import mmap
import threading
from contextlib import suppress

import torch
from torch import Tensor

LINE = 64
"""Bytes of a cache line, at which each piece begins."""
LARGE_PAGE = 2**21
"""Bytes of a large page on x86, and on ARM with small pages of 4 KiB."""
CHUNK = 2**26
"""Bytes of addresses that are mapped at once. Only large pages that are written take memory: at most one more each."""


def padded(n: int, multiple: int) -> int:
    """n rounded up to a multiple."""
    return -(-n // multiple) * multiple


class _Chunk:
    """New memory of zeros from the start of a large page, in pieces. It lives as long as one of its pieces."""

    def __init__(self, n_bytes: int) -> None:
        self._memory = mmap.mmap(-1, n_bytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without large pages
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._next = -torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr() % LARGE_PAGE
        self._end = self._next + n_bytes

    def take(self, n_bytes: int) -> Tensor | None:
        """The next piece, uint8 [n_bytes], with a storage of its own; None if too little is left."""
        first = self._next
        if self._end - first < n_bytes:
            return None
        self._next += padded(n_bytes, LINE)
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=n_bytes, offset=first)


def mapped(n_bytes: int) -> Tensor:
    """New memory of zeros, uint8 [n_bytes], from the start of a large page."""
    piece = _Chunk(n_bytes).take(n_bytes)
    assert piece is not None, "a chunk begins with all its bytes"
    return piece


class Memory:
    """Pieces of memory side by side in chunks, because most matrices of a small model are less than a large page."""

    def __init__(self) -> None:
        self._chunk = _Chunk(0)
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """New memory of zeros, uint8 of this shape, from the start of a cache line."""
        size = torch.Size(shape).numel()
        with self._lock:
            piece = self._chunk.take(size)
            if piece is None:
                self._chunk = _Chunk(padded(size, CHUNK))
                piece = self._chunk.take(size)
        assert piece is not None, "a new chunk is large enough"
        return piece.view(shape)


WEIGHTS = Memory()
"""For all weights of this process."""
