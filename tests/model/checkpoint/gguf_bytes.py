"""The bytes of a GGUF file from its parts, each of which may be wrong. Independent of the gguf package's writer."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from model.checkpoint.gguf.index import TensorEntry
from model.checkpoint.gguf.reader import Strings

NUMBERS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11, "f8": 12}


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> bytes:
    """A value with its type before it."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list | Strings):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    array = np.asarray(value)
    kind = NUMBERS[array.dtype.str[1:]]
    if array.ndim:
        return struct.pack("<IIQ", 9, kind, len(array)) + array.tobytes()
    return struct.pack("<I", kind) + array.tobytes()


def described(tensor: TensorEntry, offset: int) -> bytes:
    sizes = tensor.shape[::-1]
    kind = GGMLQuantizationType[tensor.kind]
    return text(tensor.name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def join(metadata: Mapping[str, Any], tensors: Sequence[TensorEntry], data: bytes, first: int) -> bytes:
    """A file with these fields. `data` are the bytes of the tensors, which were at `first` before."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(name) + typed(value) for name, value in metadata.items())
    head += b"".join(described(tensor, tensor.offset - first) for tensor in tensors)
    return head + bytes(-len(head) % 32) + data
