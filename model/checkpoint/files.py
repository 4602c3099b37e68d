"""The files of a model directory: layout, shards, safetensors headers, fingerprints. No torch.

A truncated safetensors file is found by its header alone, before memory is allocated.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from model.errors import ModelError, one_line, short

Layout = Literal["hf", "native"]
Progress = Callable[[str, float], None]
"""A function that is called with the stage of loading and the fraction done, 0..1."""

INDEX = "model.safetensors.index.json"
DTYPES: Mapping[str, str] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
MAX_DIGITS = 300
WHOLE_BYTES = 2**26
"""Bytes of a file that is read whole for its fingerprint."""
BLOCK_BYTES, SAMPLE_BYTES, MAX_BLOCKS = 2**20, 2**12, 2**14
PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl")
_SHARD = re.compile(r"(?:model|consolidated)-\d+-of-(\d+)\.safetensors")
_PLAIN = re.compile(r"[^/\\\0]+\.safetensors")


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One safetensors file: of each tensor by its name, the dtype (as safetensors names it) and the shape.

    The bytes of the tensors begin at `starts`.
    """

    path: Path
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    starts: tuple[int, ...] = ()


def read_json(path: Traversable) -> dict[str, Any]:
    """Read the JSON object in `path`. Raises ModelError for a file that is missing, damaged or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_int=_integer)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"the model's {path.name} cannot be read: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"the model's {path.name} must contain a JSON object, it contains a {type(value).__name__}")
    return value


def read_json_if_any(path: Traversable) -> dict[str, Any]:
    """Read the JSON object in `path`, empty without such a file. Raises ModelError as `read_json` does."""
    return read_json(path) if path.is_file() else {}


def _integer(digits: str) -> int | float:
    """Parse a whole number; infinity for one that no float holds, as JSON has for 1e999: each field refuses that."""
    return int(digits) if len(digits) < MAX_DIGITS else float(digits)


def layout(directory: Path) -> Layout:
    """Return the format of a directory: Hugging Face's, which comes first if it has both, or Mistral's native one.

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
    """Find the safetensors files of a directory, in order. Raises ModelError if one is missing."""
    shards = _named_shards(directory)
    if not shards:
        raise ModelError(_without_weights(directory))
    for path in shards:
        if path.is_dir():
            raise ModelError(f"{path.name} is a directory; it must be a safetensors file: download the model again")
        if not path.is_file():
            raise ModelError(f"the model's shard {path.name} is missing; download the model again")
    if (match := _SHARD.fullmatch(shards[0].name)) and int(match[1]) != len(shards):
        raise ModelError(f"the model has only {len(shards)} of its {int(match[1])} shards; download the model again")
    return shards


def has_shards(directory: Path) -> bool:
    """Return whether any safetensors file of the model is there. Raises ModelError for a damaged index."""
    return any(path.exists() for path in _named_shards(directory))


def _named_shards(directory: Path) -> tuple[Path, ...]:
    """Return the files that the index names, or else those that are there."""
    if layout(directory) == "hf":
        return _hf_shards(directory)
    return tuple(sorted(directory.glob("consolidated*.safetensors")))


def read_shard(path: Path) -> ShardFile:
    """Read the header of one file. Raises ModelError for a file that is truncated, damaged or not readable."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            dtypes = {name: str(tensor.get_dtype()) for name, tensor in tensors.items()}
            shapes = {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
            return ShardFile(path, dtypes, shapes, _starts(path))
    except OSError as error:
        raise ModelError(
            f"{path.name} cannot be read: {one_line(error).removesuffix(f': {path}')}; check the file"
        ) from error
    except SafetensorError as error:
        raise ModelError(f"{path.name} is damaged: {short(str(error))}; download it again") from error


def _starts(path: Path) -> tuple[int, ...]:
    """Return where the tensors of a whole safetensors file begin. Eight bytes have the length of its JSON header."""
    with path.open("rb") as file:
        n_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(n_bytes))
    return tuple(8 + n_bytes + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__")


def _without_weights(directory: Path) -> str:
    names = file_names(directory)
    pickles = sorted(name for name in names if name.lower().endswith(PICKLES))
    if pickles:
        return (
            f"{directory.name!r} has its weights only as pickle ({pickles[0]}), a format that runs code when it is "
            "read; Noria reads safetensors: download or convert to *.safetensors"
        )
    return f"{directory.name!r} has no weights: expected *.safetensors, found {_listed(names)}"


def file_names(directory: Path) -> set[str]:
    """Return the names of the files in a directory. Raises ModelError for a directory that cannot be read."""
    try:
        return {path.name for path in directory.iterdir()}
    except OSError as error:
        raise ModelError(f"the directory {directory.name!r} cannot be read: {one_line(error)}") from error


def fingerprint(path: Path, starts: Iterable[int] = ()) -> str:
    """Return size and CRC-32 of a file's content: a guard against accidents, not against attacks.

    A file of up to 64 MiB is read whole. Of a larger one, 4 KiB before and after each MiB are read, of more than 16 GiB
    fewer, and those before and after each of `starts`, where its tensors begin. So a tensor with other first or last
    values is found, however small it is.
    """
    size = path.stat().st_size
    if size <= WHOLE_BYTES:
        return f"{size:x}-{zlib.crc32(path.read_bytes()):08x}"
    places, crc = {*range(0, size, max(BLOCK_BYTES, size // MAX_BLOCKS)), *starts, size}, 0
    with path.open("rb", buffering=0) as file:
        for place in sorted(places):
            file.seek(max(0, place - SAMPLE_BYTES))
            crc = zlib.crc32(file.read(2 * SAMPLE_BYTES), crc)
    return f"{size:x}-{crc:08x}"


def _hf_shards(directory: Path) -> tuple[Path, ...]:
    if (index := directory / INDEX).is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{INDEX} has no weight_map; download it again")
        for name in weight_map.values():
            if not isinstance(name, str) or not _PLAIN.fullmatch(name):
                raise ModelError(
                    f"{INDEX} names the file {short(name)}; it must be a *.safetensors file beside the index"
                )
        return tuple(directory / name for name in sorted(set(weight_map.values())))
    if (single := directory / "model.safetensors").exists():
        return (single,)
    return tuple(sorted(directory.glob("model-*-of-*.safetensors")))


def _listed(names: set[str]) -> str:
    first = sorted(names)[:6]
    return (", ".join(first) + (", ..." if len(names) > len(first) else "")) or "no files"
