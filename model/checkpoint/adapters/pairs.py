"""The pairs of matrices in an adapter's safetensors file. No torch but where values are read."""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from model.checkpoint.files import DTYPES, ShardFile, fingerprint, read_shard
from model.errors import ModelError, one_line, short

if TYPE_CHECKING:
    from torch import Tensor

MAX_RANK = 256
_TARGET = re.compile(r"layers\.\d+\.(attention\.w[qkvo]|feed_forward\.w[123])\.weight|output\.weight")
_BASE_HEAD = re.compile(r"(?:.+\.)?lm_head\.base_layer\.weight")
"""PEFT saves the base's own head, which training leaves as it is, beside an adapter of the head (peft issue 2092)."""


class Side(NamedTuple):
    """One tensor of a pair: the native name of the weight, None if it is not known, and "A" or "B"."""

    weight: str | None
    letter: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tensors of a file, A [rank, n_in] and B [n_out, rank], by their names: they make a weight W + scale * B A."""

    a: str
    b: str
    rank: int
    n_in: int
    n_out: int
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An opened adapter, of which only headers have been read: its pairs by the native names of the weights.

    `rotation` is the order of the q and k rows of B, as in `Checkpoint`. `fingerprint` changes with the files' content.
    """

    path: Path
    rotation: Literal["half", "adjacent"]
    pairs: Mapping[str, Pair]
    fingerprint: str

    @property
    def n_values(self) -> int:
        """Count the values in all matrices."""
        return sum(pair.rank * (pair.n_in + pair.n_out) for pair in self.pairs.values())

    def tensors(self) -> Iterator[tuple[str, "Tensor", "Tensor"]]:
        """Yield the native name of each weight, with its A and B."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt", device="cpu") as file:
                for weight, pair in self.pairs.items():
                    yield weight, file.get_tensor(pair.a), file.get_tensor(pair.b)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self.path.name} cannot be read: {one_line(error)}") from error


def read_pairs(
    path: Path,
    rotation: Literal["half", "adjacent"],
    parse: Callable[[str], Side | None],
    scale: Callable[[str, int], float],
    *configs: Path,
) -> AdapterFile:
    """Read the adapter in a safetensors file. `parse` reads the name of a tensor, None for one that is no A or B.

    `scale` gives the factor of a pair from the name of its A and its rank. `configs` are files that go with it.
    Raises ModelError, which names file and tensor, for what is no pair of matrices of a known projection.
    """
    shard = read_shard(path)
    sides: dict[str, dict[str, str]] = {}
    for name in (name for name in shard.shapes if not _BASE_HEAD.fullmatch(name)):
        weight, letter = _side(shard, name, parse(name))
        if letter in (found := sides.setdefault(weight, {})):
            raise ModelError(
                f"{path.name} has two tensors for {letter} of {weight}: {short(found[letter])}, {short(name)}"
            )
        found[letter] = name
    if not sides:
        raise ModelError(f"{path.name} has no tensors; an adapter has pairs lora_A and lora_B")
    pairs = {weight: _pair(shard, weight, found, scale) for weight, found in sides.items()}
    prints = "-".join((fingerprint(path, shard.starts), *map(fingerprint, configs)))
    return AdapterFile(path, rotation, pairs, f"{zlib.crc32(prints.encode()):08x}")


def _side(shard: ShardFile, name: str, side: Side | None) -> tuple[str, str]:
    file = shard.path.name
    if shard.dtypes[name] not in DTYPES:
        raise ModelError(f"{file}: {short(name)} has dtype {shard.dtypes[name]}; Noria supports {', '.join(DTYPES)}")
    if side is not None and side.weight is not None and _TARGET.fullmatch(side.weight):
        return side.weight, side.letter
    raise ModelError(
        f"{file} has {short(name)}, which is not lora_A or lora_B of a known projection; Noria supports LoRA of "
        "attention (q, k, v, o; of latent attention o), of feed-forward (gate, up, down) and of the output head"
    )


def _pair(shard: ShardFile, weight: str, names: Mapping[str, str], scale: Callable[[str, int], float]) -> Pair:
    file = shard.path.name
    if missing := {"A", "B"} - names.keys():
        raise ModelError(f"{file} has {short(*names.values())}, but no lora_{missing.pop()} for it")
    a, b = names["A"], names["B"]
    shapes = shard.shapes[a], shard.shapes[b]
    if any(len(shape) != 2 for shape in shapes) or shapes[0][0] != shapes[1][1]:
        raise ModelError(
            f"{file}: {short(a)} has shape {list(shapes[0])} and its lora_B {list(shapes[1])}; "
            "expected [r, n_in] and [n_out, r]"
        )
    (rank, n_in), (n_out, _) = shapes
    if not 1 <= rank <= MAX_RANK:
        raise ModelError(f"{file}: {short(a)} has rank {rank}; Noria supports ranks from 1 to {MAX_RANK}")
    return Pair(a, b, rank, n_in, n_out, scale(a, rank))
