"""Structs of the C kernels, as the library describes them, and numbers that native.py compares with those of C."""

import ctypes
from collections.abc import Mapping
from functools import cache
from itertools import count, takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.batch import PAGE_SIZE
from model.kernels.cpu.build import library, suffix
from model.kernels.groups import BLOCK_GROUP, INT8_GROUP
from model.machine.device import name_of

MAX_QUERIES, MAX_HEAD_DIM, MAX_KEY_DIM = 64, 512, 576
"""Limits of attention.c."""
OUTPUTS = 16
"""Outputs of a projection that are stored together."""
FORMATS = ("int8", "q8", "q8_min", "q4", "q4_min", "bfloat16", "q4_k", "nvfp4", "mxfp4")
"""Names of the layouts of weights, in the order of `weights.format`."""
MAX_CHANNELS = 65536
"""Inputs of a projection: sums of int8 with more may not fit 32 bits."""
SUPERBLOCK, SUPERBLOCK_BYTES = 256, 144
"""Channels and bytes of a block of Q4_K."""
PLAIN, NORMED, GATED = range(3)
"""How a product takes its input: as it is, RMS-normalised, or as gate and up."""
RANKS, CHANNELS = 8, 32
"""Ranks and channels of a LoRA adapter's A that are stored together."""
TARGETS = ("wqkv", "wo", "w13", "w2")
"""The projections of a layer that an adapter may change, in the order of `lora_rows.targets`."""
CELL_KINDS: Mapping[torch.dtype, int] = {torch.bfloat16: 0, torch.float32: 1, torch.int8: 2}
"""`attention_call.kind` for the types in which keys and values are stored: the kinds of cells.h."""
FLOAT_KINDS: Mapping[torch.dtype, int] = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""Kinds of floats in a checkpoint, and of embeddings."""


def pointer(name: str, tensor: Tensor, *dtypes: torch.dtype, dense: bool = True) -> int:
    """Return the address of a tensor for C, which cannot check it. Every tensor that C reads or writes passes here.

    Raises ValueError for one that is not on the CPU, has none of `dtypes` or, where C reads it `dense`, has gaps.
    """
    if tensor.is_cpu and tensor.dtype in dtypes and (not dense or tensor.is_contiguous()):
        return tensor.data_ptr()
    expected = f"{'contiguous ' if dense else ''}{' or '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)}"
    layout = f"shape {list(tensor.shape)}, strides {list(tensor.stride())}"
    raise ValueError(f"{name} must be {expected} on the CPU, got {tensor.dtype} on {tensor.device}, {layout}")


def floats(name: str, tensor: Tensor) -> int:
    """Return the `pointer` to float32 values."""
    return pointer(name, tensor, torch.float32)


NO_PAGE, OUTSIDE, NO_MEMORY, NOT_JOINED = -1, -2, -3, -4
"""Why `step` refuses a step: see step.h."""
NO_TOKEN = -1
"""The sample from a row whose logits are all hidden."""
NOT_FINITE = -2
"""The sample from a row with a logit that is NaN or infinite."""

CONSTANTS: Mapping[str, Mapping[str, int]] = {
    "formats": {name: i for i, name in enumerate(FORMATS)},
    "inputs": {"PLAIN": PLAIN, "NORMED": NORMED, "GATED": GATED},
    "packing": {
        "OUTPUTS": OUTPUTS,
        "INT8_GROUP": INT8_GROUP,
        "BLOCK_GROUP": BLOCK_GROUP,
        "SUPERBLOCK": SUPERBLOCK,
        "SUPERBLOCK_BYTES": SUPERBLOCK_BYTES,
        "MAX_CHANNELS": MAX_CHANNELS,
    },
    "floats": {name_of(dtype): kind for dtype, kind in FLOAT_KINDS.items()},
    "cells": {name_of(dtype): kind for dtype, kind in CELL_KINDS.items()},
    "limits": {
        "PAGE_SIZE": PAGE_SIZE,
        "MAX_QUERIES": MAX_QUERIES,
        "MAX_HEAD_DIM": MAX_HEAD_DIM,
        "MAX_KEY_DIM": MAX_KEY_DIM,
    },
    "refusals": {"NO_PAGE": NO_PAGE, "OUTSIDE": OUTSIDE, "NO_MEMORY": NO_MEMORY, "NOT_JOINED": NOT_JOINED},
    "samples": {"NO_TOKEN": NO_TOKEN, "NOT_FINITE": NOT_FINITE},
    "targets": {name: i for i, name in enumerate(TARGETS)},
    "adapters": {"RANKS": RANKS, "CHANNELS": CHANNELS, "OUTPUTS": OUTPUTS},
}
"""Numbers by their names, in the groups of C's `CONSTANTS`."""


class TableEntry(ctypes.Structure):
    """`entry_t` of vectors.h."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_int64))


def entries(table: str, variant: str = "baseline") -> tuple[dict[str, int], int]:
    """Return the named values of a table of the library, and the value of its last entry, which has no name."""
    first = ctypes.pointer(TableEntry.in_dll(opened(), f"{table}_{suffix(variant)}"))
    found = {
        each.name.decode(): each.value for each in takewhile(lambda each: each.name, map(first.__getitem__, count()))
    }
    return found, first[len(found)].value


@cache
def opened() -> ctypes.CDLL:
    """Open the compiled library. Raises OSError if it is missing."""
    return ctypes.CDLL(str(library()))


TYPES = {"f": ctypes.c_float, "i": ctypes.c_int32, "q": ctypes.c_int64, "P": ctypes.c_void_p}


@cache
def struct(name: str) -> type[Any]:
    """Return the struct `name` as C declares it. Its owner keeps the memory alive to which it points."""
    fields, n_bytes = entries(f"fields_{name}")
    made = type(
        name,
        (ctypes.Structure,),
        {"__slots__": ("memory",), "_fields_": [(field, TYPES[chr(kind)]) for field, kind in fields.items()]},
    )
    assert ctypes.sizeof(made) == n_bytes, f"struct {name} has fields of other types"
    return made


@cache
def sampling() -> np.dtype[np.void]:
    """Return the record that says how to sample from a row of logits: `params` of sample.h."""
    return np.dtype(struct("params"))
