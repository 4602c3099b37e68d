"""What lies in a model directory: its layout, its shards, and their safetensors headers. No torch, no numpy.

A safetensors file is an 8-byte little-endian header length, a JSON header, and the tensors' bytes; checking that the
last offset meets the file's end costs one small read and finds every truncated file before memory is taken.
"""

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.errors import ModelError, one_line

Layout = Literal["hf", "native"]
Progress = Callable[[str, float], None]
"""Told how far work on a model is: stage, fraction 0..1."""

INDEX = "model.safetensors.index.json"
DTYPES: Mapping[str, str] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
MAX_HEADER_BYTES = 100_000_000
BLOCK_BYTES = 2**21
MAX_BLOCKS = 512
SAMPLE_BLOCKS = 16
_SHARD = re.compile(r"(?:model|consolidated)-\d+-of-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file and its tensors' dtypes (safetensors' words) by name."""

    path: Path
    dtypes: Mapping[str, str]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelError when it is missing, damaged or no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path.name} of the model: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} of the model must hold a JSON object, it holds a {type(value).__name__}")
    return value


def layout(directory: Path) -> Layout:
    """Whether a directory is in Hugging Face's or in Mistral's native format; Hugging Face's where it is both.

    Raises ModelError, naming what was found, when it is neither.
    """
    names = file_names(directory)
    if "config.json" in names and ("params.json" not in names or _hf_shards(directory)):
        return "hf"
    if "params.json" in names:
        return "native"
    expected = "config.json or params.json beside *.safetensors"
    raise ModelError(f"no model in {directory.name!r}: expected {expected}, found {_listed(names)}")


def find_shards(directory: Path) -> tuple[Path, ...]:
    """The safetensors files of the directory's layout, in order. Raises ModelError when one is missing."""
    if layout(directory) == "hf":
        shards = _hf_shards(directory)
    else:
        shards = tuple(sorted(directory.glob("consolidated*.safetensors")))
    if not shards:
        raise ModelError(
            f"no weights in {directory.name!r}: expected *.safetensors, found {_listed(file_names(directory))}"
        )
    for path in shards:
        if not path.is_file():
            raise ModelError(f"the model's shard {path.name} is missing; download the directory again")
    if (match := _SHARD.fullmatch(shards[0].name)) and int(match[1]) != len(shards):
        raise ModelError(f"the model has {len(shards)} of {int(match[1])} shards; download the directory again")
    return shards


def read_shard(path: Path) -> Shard:
    """The header of one file. Raises ModelError when the file is truncated, damaged or quantized."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise ModelError(f"{path.name} is damaged: {size} bytes are too few for its header; download it again")
        try:
            header = json.loads(file.read(length))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            dtypes = {name: entry["dtype"] for name, entry in entries.items()}
            end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
            expected = 8 + length + end
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{path.name} is damaged: its header is no safetensors header; download it again"
            ) from error
    if expected != size:
        raise ModelError(f"{path.name} is damaged: {size} bytes, its header promises {expected}; download it again")
    return Shard(path, dtypes)


def file_names(directory: Path) -> set[str]:
    """Names of the files in a directory. Raises ModelError when there is no such directory."""
    try:
        return {path.name for path in directory.iterdir()}
    except OSError as error:
        raise ModelError(f"no directory {directory.name!r}: expected one in HF or Mistral-native format") from error


def fingerprint(path: Path, max_blocks: int = MAX_BLOCKS) -> str:
    """Size and CRC-32 of a file's content: against accidents, not against malice.

    Files up to 1 GiB are read whole (4 GB/s here; BLAKE2 reads 0.9 GB/s); of larger ones 512 evenly spaced blocks
    of 2 MiB, the first and the last among them: any other checkpoint differs in every block.
    `max_blocks`, at least 2, reads less.
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
    shown = sorted(names)[:6]
    return (", ".join(shown) + (", ..." if len(names) > len(shown) else "")) or "nothing"
