"""The files of a model directory: layout, shards, safetensors headers, fingerprints. No torch, no numpy.

A safetensors file is an 8-byte little-endian header length, a JSON header, and the bytes of the tensors. A truncated
file is found by reading only the header, before memory is allocated: its last offset must be the end of the file.
"""

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from operator import index
from pathlib import Path
from typing import Any, Literal

from model.errors import ModelError, one_line

Layout = Literal["hf", "native"]
Progress = Callable[[str, float], None]
"""A function that is called with the stage of loading and the fraction done, 0..1."""

INDEX = "model.safetensors.index.json"
DTYPES: Mapping[str, str] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
MAX_HEADER_BYTES = 100_000_000
BLOCK_BYTES = 2**21
MAX_BLOCKS = 512
SAMPLE_BLOCKS = 16
_SHARD = re.compile(r"(?:model|consolidated)-\d+-of-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file, and the dtype of each of its tensors (as safetensors names it) by name."""

    path: Path
    dtypes: Mapping[str, str]


def read_json(path: Traversable) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelError for a file that is missing, damaged or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"the model's {path.name} cannot be read: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"the model's {path.name} must contain a JSON object, it contains a {type(value).__name__}")
    return value


def layout(directory: Path) -> Layout:
    """The format of a directory: Hugging Face's or Mistral's native one. Hugging Face's comes first if it has both.

    Raises ModelError, which names the files found, for a directory in neither format.
    """
    names = file_names(directory)
    if "config.json" in names and ("params.json" not in names or _hf_shards(directory)):
        return "hf"
    if "params.json" in names:
        return "native"
    expected = "config.json or params.json beside *.safetensors"
    raise ModelError(f"{directory.name!r} is not a model directory: expected {expected}, found {_listed(names)}")


def find_shards(directory: Path) -> tuple[Path, ...]:
    """The safetensors files of a directory, in order. Raises ModelError if one is missing."""
    if layout(directory) == "hf":
        shards = _hf_shards(directory)
    else:
        shards = tuple(sorted(directory.glob("consolidated*.safetensors")))
    if not shards:
        raise ModelError(
            f"{directory.name!r} has no weights: expected *.safetensors, found {_listed(file_names(directory))}"
        )
    for path in shards:
        if not path.is_file():
            raise ModelError(f"the model's shard {path.name} is missing; download the model again")
    if (match := _SHARD.fullmatch(shards[0].name)) and int(match[1]) != len(shards):
        raise ModelError(f"the model has only {len(shards)} of its {int(match[1])} shards; download the model again")
    return shards


def read_shard(path: Path) -> Shard:
    """The header of one file. Raises ModelError for a file that is truncated, damaged or not readable."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{path.name} is damaged: its header needs more than {size} bytes; download it again")
            header = file.read(length)
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {one_line(error)}; check the file") from error
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        dtypes = {name: str(entry["dtype"]) for name, entry in entries.items()}
        expected = 8 + length + max((index(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{path.name} is damaged: its header is not a safetensors header; download it again"
        ) from error
    if expected != size:
        raise ModelError(
            f"{path.name} is damaged: its header describes {expected} bytes, it has {size}; download it again"
        )
    return Shard(path, dtypes)


def file_names(directory: Path) -> set[str]:
    """Names of the files in a directory. Raises ModelError for a directory that cannot be read."""
    try:
        return {path.name for path in directory.iterdir()}
    except OSError as error:
        raise ModelError(f"the directory {directory.name!r} cannot be read: {one_line(error)}") from error


def fingerprint(path: Path, max_blocks: int = MAX_BLOCKS) -> str:
    """Size and CRC-32 of a file's content: a guard against accidents, not against attacks.

    A file of up to 1 GiB is read whole. Of a larger one, 512 evenly spaced blocks of 2 MiB are read, with the first and
    the last: another checkpoint differs in every block. A smaller `max_blocks`, at least 2, reads less.
    """
    size = path.stat().st_size
    n_blocks = -(-size // BLOCK_BYTES)
    step = max(n_blocks - 1, 1) / (min(n_blocks, max_blocks) - 1 or 1)
    crc = 0
    with path.open("rb") as file:
        for block in range(min(n_blocks, max_blocks)):
            file.seek(round(block * step) * BLOCK_BYTES)
            crc = zlib.crc32(file.read(BLOCK_BYTES), crc)
    return f"{size:x}-{crc:08x}"


def _hf_shards(directory: Path) -> tuple[Path, ...]:
    if (index := directory / INDEX).is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{INDEX} has no weight_map; download it again")
        return tuple(directory / name for name in sorted(set(weight_map.values())))
    if (single := directory / "model.safetensors").is_file():
        return (single,)
    return tuple(sorted(directory.glob("model-*-of-*.safetensors")))


def _listed(names: set[str]) -> str:
    first = sorted(names)[:6]
    return (", ".join(first) + (", ..." if len(names) > len(first) else "")) or "no files"
