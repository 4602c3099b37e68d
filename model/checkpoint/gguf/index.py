"""The index of a GGUF file: name, kind and place of each weight, stored in the converted directory. No torch."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from model.checkpoint.files import fingerprint, read_json
from model.errors import ModelError
from model.kernels.groups import BLOCK_GROUP

INDEX = "gguf.json"
FLOATS = ("F32", "F16", "BF16")
BLOCK_BITS = {"Q4_0": 4 + 16 / BLOCK_GROUP, "Q4_1": 4 + 32 / BLOCK_GROUP, "Q8_0": 8 + 16 / BLOCK_GROUP}
"""Bits of a weight in each kind of block that is served as it is, its share of the scale and the minimum included."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in the file: its name, GGUF's name of its kind, its shape with the rows first, and where its bytes are.

    The name is GGUF's where `reader.py` gives it, and the native one in an `Index`.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Index:
    """The weights in the GGUF file `path`."""

    path: Path
    entries: tuple[Entry, ...]

    @property
    def quantized(self) -> bool:
        """Whether any weight in the file is quantized."""
        return any(entry.kind not in FLOATS for entry in self.entries)

    @property
    def block_bits(self) -> float | None:
        """Bits of a weight of the projections in `matrices.Blocks`, on average; None if the file is not quantized.

        Weights of other kinds are stored as Q8_0.
        """
        if not self.quantized:
            return None
        own_head = any(entry.name == "output.weight" for entry in self.entries)
        bits = weights = 0.0
        for entry in self.entries:
            if len(entry.shape) > 1 and not (own_head and entry.name == "tok_embeddings.weight"):
                weights += math.prod(entry.shape)
                bits += math.prod(entry.shape) * BLOCK_BITS.get(entry.kind, BLOCK_BITS["Q8_0"])
        return bits / weights

    def write(self, directory: Path) -> None:
        """Write the index into a converted directory, with the fingerprint of the file."""
        tensors = [asdict(entry) for entry in self.entries]
        index = {"path": str(self.path), "fingerprint": fingerprint(self.path), "tensors": tensors}
        (directory / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def read_index(directory: Path) -> Index:
    """The index in a converted directory. Raises ModelError if the GGUF file is gone or has changed."""
    index = read_json(directory / INDEX)
    path = Path(index["path"])
    try:
        same = fingerprint(path) == index["fingerprint"]
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}; start again with its new path") from error
    if not same:
        raise ModelError(f"{path.name} has changed since it was converted; start again")
    entries = (Entry(**{**entry, "shape": tuple(entry["shape"])}) for entry in index["tensors"])
    return Index(path, tuple(entries))
