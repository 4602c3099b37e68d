"""Memory of weights: pieces side by side, and what the system was asked for, as Linux lists it."""

import mmap
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from model.kernels.cpu.memory import CHUNK, LINE, Memory, mapped


def test_pieces_are_apart_and_zero() -> None:
    memory = Memory()
    shapes = [(3,), (5, 7), (1, 2, 64), (CHUNK // 2,), (CHUNK // 2,), (CHUNK + 1,), (9,)]
    pieces = [memory.take(shape) for shape in shapes]
    spans = sorted((piece.data_ptr(), piece.data_ptr() + piece.nbytes) for piece in pieces)
    assert all(end <= first for (_, end), (first, _) in pairwise(spans))
    assert all(first % LINE == 0 for first, _ in spans)
    assert [tuple(piece.shape) for piece in pieces] == shapes
    assert not any(piece.any() for piece in pieces)
    assert [piece.untyped_storage().nbytes() for piece in pieces] == [piece.nbytes for piece in pieces]


def flags(address: int) -> list[str]:
    """What Linux knows of the mapping at an address ("hg": large pages were asked for)."""
    found: list[str] = []
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            found = line.split()[1:]
    return found


def test_linux_is_asked_for_large_pages() -> None:
    """A kernel without them lists no such flag, and the memory serves all the same."""
    asked = Path("/sys/kernel/mm/transparent_hugepage").is_dir()
    assert ("hg" in flags(mapped(CHUNK).data_ptr())) == asked


@pytest.mark.parametrize("advice", [None, 12345])
def test_memory_serves_where_no_large_pages_are(monkeypatch: pytest.MonkeyPatch, advice: int | None) -> None:
    """Another system has no such constant; a kernel that does not know it refuses the call."""
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    if advice is not None:
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", advice, raising=False)
    memory = mapped(1000)
    memory.fill_(7)
    assert torch.equal(memory, torch.full((1000,), 7, dtype=torch.uint8))
    assert "hg" not in flags(memory.data_ptr())
