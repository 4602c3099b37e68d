"""The weights of a GGUF file, read one at a time where the index in a converted directory says they are."""

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from model.checkpoint.files import SAMPLE_BLOCKS, fingerprint
from model.checkpoint.gguf.index import BLOCK_BITS, FLOATS, Entry, Index
from model.checkpoint.matrices import BlockMatrix, EncodedMatrix, Matrix
from model.checkpoint.quantized.config import Kind
from model.errors import ModelError
from model.kernels.groups import BLOCK_GROUP

_DTYPES = dict(zip(FLOATS, (torch.float32, torch.float16, torch.bfloat16), strict=True))


@dataclass(frozen=True, slots=True)
class GgufWeights:
    """The weights that an index names."""

    index: Index

    summary = ""

    @property
    def kind(self) -> Kind:
        return "blocks" if self.index.quantized else "floats"

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.index.path, SAMPLE_BLOCKS)

    @property
    def block_bits(self) -> float | None:
        return self.index.block_bits

    def tensors(self) -> Iterator[tuple[str, Matrix]]:
        """Native names and weights: tensors if nothing in the file is quantized, else encoded matrices only."""
        quantized, file = self.index.quantized, self._mapped()
        for entry in self.index.entries:
            data = file[entry.offset : entry.offset + entry.n_bytes]
            if len(data) < entry.n_bytes:
                raise ModelError(f"{self.index.path.name} is shorter than it was when it was converted; start again")
            if entry.kind in FLOATS and (not quantized or len(entry.shape) == 1):
                yield entry.name, data.view(_DTYPES[entry.kind]).view(entry.shape)
            else:
                yield entry.name, _matrix(entry, data)

    def _mapped(self) -> Tensor:
        """The file's bytes, read as they are used."""
        try:
            with self.index.path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelError(f"{self.index.path.name} cannot be read: {error.strerror}; start again") from error
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        return torch.frombuffer(mapped, dtype=torch.uint8)


def _matrix(entry: Entry, data: Tensor) -> BlockMatrix | EncodedMatrix:
    n_out, n_in = math.prod(entry.shape[:-1]), entry.shape[-1]
    if entry.kind not in BLOCK_BITS:
        return EncodedMatrix(data.view(n_out, -1), entry.kind, (n_out, n_in))
    groups = data.view(n_out, n_in // BLOCK_GROUP, -1)  # of each: the scale, Q4_1's minimum, the integers
    n_head = 4 if entry.kind == "Q4_1" else 2
    head = groups[..., :n_head].view(torch.float16)  # [n_out, n_in/32, 1 or 2]
    quants = groups[..., n_head:]
    return BlockMatrix(
        quants.view(torch.int8) if entry.kind == "Q8_0" else quants,
        head[..., 0],
        head[..., 1] if entry.kind == "Q4_1" else None,
    )
