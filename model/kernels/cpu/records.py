"""Structs and numbers of the C kernels as Python repeats them. native.py compares them at load."""

import ctypes
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from model.batch import PAGE_SIZE
from model.kernels.groups import BLOCK_GROUP, INT8_GROUP
from model.machine.device import name_of

MAX_QUERIES, MAX_HEAD_DIM, MAX_ROWS, SPLIT_PAGES = 64, 512, 16, 16
"""Limits of attention.c."""
OUTPUTS = 16
"""Outputs of a projection that are stored together."""
FORMATS = ("int8", "q8", "q8_min", "q4", "q4_min", "bfloat16", "q4_k")
"""Names of the layouts of weights, in the order of `WeightsRecord.format`."""
SUPERBLOCK, SUPERBLOCK_BYTES = 256, 144
"""Channels and bytes of a block of Q4_K."""
PLAIN, NORMED, GATED = range(3)
"""How a product takes its input: as it is, RMS-normalised, or as gate and up."""
RANKS, CHANNELS = 8, 32
"""Ranks and channels of a LoRA adapter's A that are stored together."""
TARGETS = ("wqkv", "wo", "w13", "w2")
"""The projections of a layer that an adapter may change, in the order of `AdapterRows.targets`."""
CELL_KINDS: Mapping[torch.dtype, int] = {torch.bfloat16: 0, torch.float32: 1, torch.int8: 2}
"""`AttentionCall.kind` for the types in which keys and values are stored: the kinds of cells.h."""
FLOAT_KINDS: Mapping[torch.dtype, int] = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""Kinds of floats in a checkpoint, and of embeddings."""
WHOLE = -1
"""The `part` of a task of attention.h that is not split."""


def pointer(name: str, tensor: Tensor, *dtypes: torch.dtype, dense: bool = True) -> int:
    """The address of a tensor for C, which cannot check it. Every tensor that C reads or writes goes through here.

    Raises ValueError for one that is not on the CPU, has none of `dtypes` or, where C reads it `dense`, has gaps.
    """
    if tensor.is_cpu and tensor.dtype in dtypes and (not dense or tensor.is_contiguous()):
        return tensor.data_ptr()
    wanted = f"{'contiguous ' if dense else ''}{' or '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)}"
    layout = f"shape {list(tensor.shape)}, strides {list(tensor.stride())}"
    raise ValueError(f"{name} must be {wanted} on the CPU, got {tensor.dtype} on {tensor.device}, {layout}")


def floats(name: str, tensor: Tensor) -> int:
    """The `pointer` to float32 values."""
    return pointer(name, tensor, torch.float32)


class WeightsRecord(ctypes.Structure):
    """`weights` of linear.h."""

    _fields_ = (
        ("packed", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("n_out", ctypes.c_int64),
        ("n_in", ctypes.c_int64),
        ("format", ctypes.c_int64),
        ("by_tiles", ctypes.c_int64),
    )


class AttentionCall(ctypes.Structure):
    """One layer's attention: `call` of attention.c. Pointers to what the caller keeps alive."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("qkv", "rotations", "q_factors", "out", "parts", "cells", "slots", "pages", "tasks", "joins")
        ),
        *(
            (name, ctypes.c_int64)
            for name in ("n_rows", "n_tasks", "n_joins", "n_heads", "n_kv_heads", "head_dim", "window", "kind")
        ),
        *((name, ctypes.c_int64) for name in ("part_queries", "n_keys")),
    )


class Layer(ctypes.Structure):
    """`layer` of network.c."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("attention_norm", "ffn_norm", "wqkv", "wo", "w13", "w2", "experts", "cells")
        ),
        ("pool", ctypes.c_int64),
    )


class PoolRecord(ctypes.Structure):
    """`pool_t` of step.h."""

    _fields_ = (("rotations", ctypes.c_void_p), ("q_factors", ctypes.c_void_p), ("window", ctypes.c_int64))


class AdapterRecord(ctypes.Structure):
    """`adapter_t` of step.h."""

    _fields_ = (("targets", ctypes.c_void_p), ("rank", ctypes.c_int64))


class NetworkRecord(ctypes.Structure):
    """`network_t` of step.h. Pointers to what its owner keeps alive."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("embeddings", "layers", "pools", "norm", "head")),
        *(
            (name, ctypes.c_int64)
            for name in ("n_layers", "n_pools", "n_positions", "n_tokens", "dim", "hidden_dim", "n_heads", "n_kv_heads")
        ),
        *(
            (name, ctypes.c_int64)
            for name in ("head_dim", "kind", "embedding_kind", "page_size", "rows_a_task", "split", "enough")
        ),
        ("eps", ctypes.c_float),
    )


class StepRecord(ctypes.Structure):
    """`step_t` of step.h. Pointers to what the caller keeps alive."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("slices", "tokens", "pages", "sampling", "adapters", "image_rows")),
        *((name, ctypes.c_void_p) for name in ("images", "x", "sampled")),
        *((name, ctypes.c_int64) for name in ("n_slices", "n_adapters", "n_image_rows", "block_rows", "product_bytes")),
    )


class ExpertsRecord(ctypes.Structure):
    """`experts_t` of experts.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gate", "w13", "w2", "shared_w13", "shared_w2")),
        *((name, ctypes.c_int64) for name in ("n_experts", "n_used")),
        ("routed_scale", ctypes.c_float),
    )


class LowRankRecord(ctypes.Structure):
    """`lora` of linear.h. All zeros: nothing is added to this projection."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "begins", "firsts")),
        *((name, ctypes.c_int64) for name in ("rank", "n_groups", "n_blocks")),
    )


class AdapterRows(ctypes.Structure):
    """`lora_rows` of linear.h. Pointers to what the caller keeps alive."""

    _fields_ = (*((name, ctypes.c_void_p) for name in ("targets", "rows", "u")), ("n_rows", ctypes.c_int64))


class Grid(ctypes.Structure):
    """`grid` of pack.c."""

    _fields_ = (("at", ctypes.c_void_p), ("output", ctypes.c_int64), ("group", ctypes.c_int64))

    @classmethod
    def of(cls, name: str, part: Tensor, *dtypes: torch.dtype) -> "Grid":
        """The grid of part [n, n_in/32] or [n, n_in/32, bytes], with the bytes side by side."""
        if part.dim() == 3 and part.stride(2) != 1:
            raise ValueError(f"{name} must have the bytes of a group side by side, got strides {list(part.stride())}")
        return cls(pointer(name, part, *dtypes, dense=False), *(stride * part.itemsize for stride in part.stride()[:2]))


SAMPLING = np.dtype(
    [(name, np.float32) for name in ("temperature", "min_p", "top_p")]
    + [(name, np.int32) for name in ("top_k", "start", "step")]
)
"""How to sample from a row of logits: `params` of sample.c."""
NO_PAGE, OUTSIDE, NO_MEMORY = -1, -2, -3
"""Why `step` refuses a step: see step.h."""
NO_TOKEN = -1
"""The sample from a row whose logits are all hidden."""
NOT_FINITE = -2
"""The sample from a row with a logit that is NaN or infinite."""
TASK = np.dtype([(name, np.int64) for name in ("row", "n_rows", "position", "page", "block", "end", "part")])
"""Rows of one sequence and their pages: `task_t` of attention.h."""
JOIN = np.dtype([(name, np.int64) for name in ("row", "n_rows", "first", "n")])
"""Tasks whose sums are joined: `join_t` of attention.h."""

Mirror = type[ctypes.Structure] | np.dtype[np.void]
MIRRORS: Mapping[str, Mirror] = {
    "weights": WeightsRecord,
    "attention_call": AttentionCall,
    "task_t": TASK,
    "join_t": JOIN,
    "layer": Layer,
    "pool_t": PoolRecord,
    "adapter_t": AdapterRecord,
    "network_t": NetworkRecord,
    "step_t": StepRecord,
    "experts_t": ExpertsRecord,
    "lora": LowRankRecord,
    "lora_rows": AdapterRows,
    "grid": Grid,
    "params": SAMPLING,
}
"""The structs by their names in C."""

CONSTANTS: Mapping[str, Mapping[str, int]] = {
    "formats": {name: i for i, name in enumerate(FORMATS)},
    "inputs": {"PLAIN": PLAIN, "NORMED": NORMED, "GATED": GATED},
    "packing": {
        "OUTPUTS": OUTPUTS,
        "INT8_GROUP": INT8_GROUP,
        "BLOCK_GROUP": BLOCK_GROUP,
        "SUPERBLOCK": SUPERBLOCK,
        "SUPERBLOCK_BYTES": SUPERBLOCK_BYTES,
    },
    "floats": {name_of(dtype): kind for dtype, kind in FLOAT_KINDS.items()},
    "cells": {name_of(dtype): kind for dtype, kind in CELL_KINDS.items()},
    "limits": {
        "PAGE_SIZE": PAGE_SIZE,
        "MAX_QUERIES": MAX_QUERIES,
        "MAX_HEAD_DIM": MAX_HEAD_DIM,
        "MAX_ROWS": MAX_ROWS,
        "SPLIT_PAGES": SPLIT_PAGES,
    },
    "refusals": {"NO_PAGE": NO_PAGE, "OUTSIDE": OUTSIDE, "NO_MEMORY": NO_MEMORY},
    "samples": {"NO_TOKEN": NO_TOKEN, "NOT_FINITE": NOT_FINITE},
    "targets": {name: i for i, name in enumerate(TARGETS)},
    "adapters": {"RANKS": RANKS, "CHANNELS": CHANNELS, "OUTPUTS": OUTPUTS},
}
"""Numbers by their names, in the groups of C's `CONSTANTS`."""


class Constant(ctypes.Structure):
    """`constant_t` of vectors.h."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_int64))


class Field(ctypes.Structure):
    """A field of a struct as C lays it out: `field_t` of vectors.h."""

    _fields_ = (("name", ctypes.c_char_p), ("offset", ctypes.c_int64), ("bytes", ctypes.c_int64))


def layout(mirror: Mirror) -> list[tuple[str, int, int]]:
    """Name, offset and bytes of each field, in order; the last entry is ("", 0, bytes of the struct)."""
    if isinstance(mirror, np.dtype):
        fields = [(name, offset, kind.itemsize) for name, (kind, offset, *_) in (mirror.fields or {}).items()]
        return [*fields, ("", 0, mirror.itemsize)]
    described = [getattr(mirror, name) for name, *_ in mirror._fields_]
    fields = [(name, at.offset, at.size) for (name, *_), at in zip(mirror._fields_, described, strict=True)]
    return [*fields, ("", 0, ctypes.sizeof(mirror))]
