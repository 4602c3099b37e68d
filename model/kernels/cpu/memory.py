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


def mapped(n_bytes: int) -> Tensor:
    """New memory of zeros, uint8 [n_bytes], from the start of a large page. It lives as long as its tensors."""
    memory = mmap.mmap(-1, n_bytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    first = -whole.data_ptr() % LARGE_PAGE
    return whole[first : first + n_bytes]


class Memory:
    """Pieces of memory side by side in chunks, because most matrices of a small model are less than a large page.

    A chunk lives as long as one of its pieces.
    """

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """New memory of zeros, uint8 of this shape, from the start of a cache line."""
        size = torch.Size(shape).numel()
        with self._lock:
            if len(self._rest) < size:
                self._rest = mapped(padded(size, CHUNK))
            piece, self._rest = self._rest[:size], self._rest[padded(size, LINE) :]
        return piece.view(shape)


WEIGHTS = Memory()
"""For all weights of this process."""
