"""The weights of a GGUF file, read one at a time where the index in a converted directory says they are."""

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from model.blocks import BITS, GROUP, Blocks, Encoded, Matrix
from model.checkpoint.cache import fingerprint
from model.checkpoint.files import read_json
from model.checkpoint.gguf import FLOATS, INDEX, Entry
from model.errors import ModelError

_DTYPES = dict(zip(FLOATS, (torch.float32, torch.float16, torch.bfloat16), strict=True))


@dataclass(frozen=True, slots=True)
class GgufWeights:
    """What lies in the file `path`."""

    path: Path
    entries: tuple[Entry, ...]

    @property
    def quantized(self) -> bool:
        """Whether anything in the file is."""
        return any(entry.kind not in FLOATS for entry in self.entries)

    @property
    def block_bits(self) -> float:
        """What a weight of the projections takes in `Blocks`, on average."""
        own_head = any(entry.name == "output.weight" for entry in self.entries)
        others = BITS["Q8_0"] if self.quantized else BITS["Q4_1"]
        bits = weights = 0.0
        for entry in self.entries:
            if len(entry.shape) > 1 and not (own_head and entry.name == "tok_embeddings.weight"):
                weights += math.prod(entry.shape)
                bits += math.prod(entry.shape) * BITS.get(entry.kind, others)
        return bits / weights

    def tensors(self) -> Iterator[tuple[str, Matrix]]:
        """Native names and weights: tensors where nothing in the file is quantized, else all matrices encoded."""
        quantized, file = self.quantized, self._mapped()
        for entry in self.entries:
            data = file[entry.offset : entry.offset + entry.n_bytes]
            if len(data) < entry.n_bytes:
                raise ModelError(f"{self.path.name} has become shorter; start again")
            if entry.kind in FLOATS and (not quantized or len(entry.shape) == 1):
                yield entry.name, data.view(_DTYPES[entry.kind]).view(entry.shape)
            else:
                yield entry.name, _matrix(entry, data)

    def _mapped(self) -> Tensor:
        """The file's bytes, read as they are used."""
        try:
            with self.path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelError(f"cannot read {self.path.name}: {error.strerror}; start again") from error
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        return torch.frombuffer(mapped, dtype=torch.uint8)


def read_index(directory: Path) -> GgufWeights:
    """The weights that a converted directory stands for. Raises ModelError if the file is gone or another now."""
    index = read_json(directory / INDEX)
    path = Path(index["path"])
    try:
        same = fingerprint(path) == index["fingerprint"]
    except OSError as error:
        raise ModelError(f"cannot read {path.name}: {error.strerror}; start again with its new place") from error
    if not same:
        raise ModelError(f"{path.name} is not the file any more that it was at the start; start again")
    entries = (Entry(**{**entry, "shape": tuple(entry["shape"])}) for entry in index["tensors"])
    return GgufWeights(path, tuple(entries))


def _matrix(entry: Entry, data: Tensor) -> Blocks | Encoded:
    n_out, n_in = math.prod(entry.shape[:-1]), entry.shape[-1]
    if entry.kind not in BITS:
        return Encoded(data.view(n_out, -1), entry.kind, (n_out, n_in))
    groups = data.view(n_out, n_in // GROUP, -1)  # of each: the scale, Q4_1's minimum, the integers
    n_head = 4 if entry.kind == "Q4_1" else 2
    head = groups[..., :n_head].view(torch.float16)  # [n_out, n_in/32, 1 or 2]
    quants = groups[..., n_head:]
    return Blocks(
        quants.view(torch.int8) if entry.kind == "Q8_0" else quants,
        head[..., 0],
        head[..., 1] if entry.kind == "Q4_1" else None,
    )
