"""The weights of a GGUF model, read one at a time where the index says they are."""

import math
import mmap
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from torch import Tensor

from model.checkpoint.gguf.index import FLOATS, Index, TensorEntry
from model.checkpoint.stored import Stored
from model.errors import ModelError

_HALF, _WHOLE = re.compile(r"\.w[kv]_b\."), ".wkv_b."
"""Halves of a weight of latent attention, and the whole."""


def read_weights(index: Index, skip: Collection[str]) -> Iterator[tuple[str, Stored]]:
    """Yield native names and weights. Among quantized ones a matrix of floats has the layout of groups."""
    quantized, halves = index.quantized, dict[str, Tensor]()
    for number, path in enumerate(index.paths):
        file = _mapped(path)
        for entry in index.entries:
            if entry.file != number or _HALF.sub(_WHOLE, entry.name) in skip:
                continue
            data = file[entry.offset : entry.offset + entry.n_bytes]
            if len(data) < entry.n_bytes:
                raise ModelError(f"{path.name} is shorter than it was when it was opened; start again")
            if _HALF.search(entry.name):
                yield from _joined(entry, data, halves)
            else:
                yield entry.name, _stored(entry, data, quantized=quantized)


def _joined(entry: TensorEntry, data: Tensor, halves: dict[str, Tensor]) -> Iterator[tuple[str, Stored]]:
    """Yield the native matrix of both halves of latent attention's wkv_b, once the other half has come.

    The keys of a head are transposed in the file: [n_heads, kv_lora_rank, qk_nope_head_dim].
    """
    name, is_key = _HALF.sub(_WHOLE, entry.name), ".wk_b." in entry.name
    own = torch.cat([part.float() for part in _stored(entry, data).parts()]).reshape(
        entry.shape[0], -1, entry.shape[-1]
    )
    own = own.transpose(1, 2) if is_key else own
    if (other := halves.pop(name, None)) is None:
        halves[name] = own
        return
    yield name, Stored(torch.cat((own, other) if is_key else (other, own), dim=1).flatten(0, 1))


def _stored(entry: TensorEntry, data: Tensor, *, quantized: bool = False) -> Stored:
    """Return the weight; what has more than two dimensions (the convolution of an image encoder) is never quantized."""
    if entry.kind not in FLOATS:
        return Stored(data.view(math.prod(entry.shape[:-1]), -1), "gguf", kind=entry.kind)
    values = data.view(getattr(torch, FLOATS[entry.kind])).view(entry.shape)
    return Stored(values, "groups" if quantized and values.dim() == 2 else "floats")


def _mapped(path: Path) -> Tensor:
    """Map the file's bytes, which are read as they are used."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}; start again") from error
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    return torch.frombuffer(mapped, dtype=torch.uint8)
