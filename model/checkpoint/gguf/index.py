"""The index of a GGUF model: name, kind and place of each weight, and GGUF's kinds. No torch, no numpy."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from model.kernels.groups import BLOCK_GROUP

_KINDS = (
    *(("F32", 0, 1, 4), ("F16", 1, 1, 2), ("Q4_0", 2, 32, 18), ("Q4_1", 3, 32, 20), ("Q5_0", 6, 32, 22)),
    *(("Q5_1", 7, 32, 24), ("Q8_0", 8, 32, 34), ("Q8_1", 9, 32, 40), ("Q2_K", 10, 256, 84), ("Q3_K", 11, 256, 110)),
    *(("Q4_K", 12, 256, 144), ("Q5_K", 13, 256, 176), ("Q6_K", 14, 256, 210), ("Q8_K", 15, 256, 292)),
    *(("IQ2_XXS", 16, 256, 66), ("IQ2_XS", 17, 256, 74), ("IQ3_XXS", 18, 256, 98), ("IQ1_S", 19, 256, 50)),
    *(("IQ4_NL", 20, 32, 18), ("IQ3_S", 21, 256, 110), ("IQ2_S", 22, 256, 82), ("IQ4_XS", 23, 256, 136)),
    *(("I8", 24, 1, 1), ("I16", 25, 1, 2), ("I32", 26, 1, 4), ("I64", 27, 1, 8), ("F64", 28, 1, 8)),
    *(("IQ1_M", 29, 256, 56), ("BF16", 30, 1, 2), ("TQ1_0", 34, 256, 54), ("TQ2_0", 35, 256, 66)),
    *(("MXFP4", 39, 32, 17), ("NVFP4", 40, 64, 36), ("Q1_0", 41, 128, 18), ("Q2_0", 42, 64, 18)),
)
KINDS: Mapping[str, tuple[int, int, int]] = {kind[0]: kind[1:] for kind in _KINDS}
"""GGUF's number of each kind, values and bytes of a block. The layouts are those of llama.cpp's ggml-common.h of 2026
(commit 01243c58). A fork writes blocks of 128 values under the number of Q2_0. The reader refuses such a file, because
its tensors would overlap or exceed it."""
READABLE = tuple(name for name in KINDS if name not in ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"))
FLOATS: Mapping[str, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""PyTorch's name of each kind that is not quantized."""


@dataclass(frozen=True, slots=True)
class BlockStorage:
    """How a kind of blocks is stored for the kernels: bits of a weight in groups of 32 with a scale, and a minimum.

    `own_bits` are those of a weight with its share of the tables, if a projection of this kind alone keeps the file's.
    """

    value_bits: int
    has_minima: bool = False
    own_bits: float | None = None


STORED: Mapping[str, BlockStorage] = {
    "Q1_0": BlockStorage(4),
    "Q2_0": BlockStorage(4),
    "Q4_0": BlockStorage(4),
    "Q4_1": BlockStorage(4, has_minima=True),
    "Q4_K": BlockStorage(4, has_minima=True, own_bits=4.5),
    "Q5_0": BlockStorage(8),
    "Q5_1": BlockStorage(8, has_minima=True),
    "Q5_K": BlockStorage(8, has_minima=True),
    "Q8_0": BlockStorage(8),
    "IQ4_NL": BlockStorage(8),
    "IQ4_XS": BlockStorage(8),
}
"""Kinds that `gguf.blocks` stores without another quantization."""
OTHERS = BlockStorage(8)
"""All other kinds are quantized to 8 bits."""
_JOINED = (re.compile(r"(attention\.w)[qkv]\."), re.compile(r"(w)[13]\.weight$"))
"""Weights that are parts of one projection."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor in a file: its name, GGUF's name of its kind, its shape with the rows first, and where its bytes are.

    The name is GGUF's where `reader.py` gives it, and the native one in an `Index`. `file` is the number of its file.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int
    file: int = 0


@dataclass(frozen=True, slots=True)
class Index:
    """The weights in the GGUF files `paths`."""

    paths: tuple[Path, ...]
    entries: tuple[TensorEntry, ...]

    @property
    def files(self) -> tuple[tuple[Path, tuple[int, ...]], ...]:
        """Return the files, and where the weights in each begin."""
        starts = [[entry.offset for entry in self.entries if entry.file == number] for number in range(len(self.paths))]
        return tuple(zip(self.paths, map(tuple, starts), strict=True))

    @property
    def quantized(self) -> bool:
        """Return whether any weight in the files is quantized."""
        return any(entry.kind not in FLOATS for entry in self.entries)

    @property
    def dtype(self) -> str:
        """Return PyTorch's name of the format of most matrices; bfloat16 if any is quantized."""
        if self.quantized:
            return "bfloat16"
        kinds = [entry.kind for entry in self.entries if len(entry.shape) > 1]
        return FLOATS[max(FLOATS, key=kinds.count)]

    @property
    def block_bits(self) -> float | None:
        """Return the average bits of a projection's weight in the compiled kernels; None if nothing is quantized.

        All parts of a projection get the layout that holds each of them.
        """
        if not self.quantized:
            return None
        own_head = any(entry.name == "output.weight" for entry in self.entries)
        projections: dict[str, list[TensorEntry]] = defaultdict(list)
        for entry in self.entries:
            if len(entry.shape) > 1 and not (own_head and entry.name == "tok_embeddings.weight"):
                projections[_projection(entry.name)].append(entry)
        sizes = {name: sum(math.prod(entry.shape) for entry in parts) for name, parts in projections.items()}
        bits = sum(sizes[name] * _bits(parts) for name, parts in projections.items())
        return bits / sum(sizes.values()) if sizes else None


def _projection(name: str) -> str:
    for part in _JOINED:
        name = part.sub(r"\1", name)
    return name


def _bits(parts: Iterable[TensorEntry]) -> float:
    stored = [STORED.get(entry.kind, OTHERS) for entry in parts]
    if len(set(stored)) == 1 and stored[0].own_bits is not None:
        return stored[0].own_bits
    tables = 32 if any(kind.has_minima for kind in stored) else 16
    return max(kind.value_bits for kind in stored) + tables / BLOCK_GROUP
