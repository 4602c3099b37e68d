"""The files of a GGUF model: one, or parts named `name-00001-of-00003.gguf` with the metadata in the first. No torch."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from model.checkpoint.gguf.index import Entry
from model.checkpoint.gguf.reader import GgufFile, read_gguf
from model.errors import ModelError, short

_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def find_parts(path: Path) -> tuple[Path, ...]:
    """All files of the model whose first file is `path`. Raises ModelError for another part and for a missing one."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    names = [part_name(match["name"], number, count, path.suffix) for number in range(1, count + 1)]
    if path.name != names[0]:
        raise ModelError(f"{path.name} is part {int(match['number'])} of {count}; name the first part, {names[0]}")
    paths = tuple(path.with_name(name) for name in names)
    if missing := [part.name for part in paths if not part.is_file()]:
        raise ModelError(f"{missing[0]}, a part of the model, is missing beside {path.name}; download it too")
    return paths


def part_name(name: str, number: int, count: int, suffix: str = ".gguf") -> str:
    """The name of a part; numbers begin at 1."""
    return f"{name}-{number:05d}-of-{count:05d}{suffix}"


def whole_name(stem: str) -> str:
    """The stem of a file without the number of its part."""
    match = _PART.fullmatch(f"{stem}.gguf")
    return match["name"] if match else stem


def read_parts(paths: Sequence[Path]) -> GgufFile:
    """The metadata of the first file and the tensors of all; `Entry.file` is the number of a tensor's file, from 0.

    Raises ModelError, one line, for a damaged file and for parts that do not belong together.
    """
    files = [read_gguf(path) for path in paths]
    for number, (path, file) in enumerate(zip(paths, files, strict=True)):
        found = (file.metadata.get("split.no", 0), max(1, file.metadata.get("split.count", 1)))
        if found != (number, len(paths)):
            raise ModelError(
                f"{path.name} says it is part {found[0] + 1} of {found[1]}, expected part {number + 1} of {len(paths)}; "
                "download the model again, and do not rename its files"
            )
    tensors = [replace(tensor, file=number) for number, file in enumerate(files) for tensor in file.tensors]
    _check_tensors(files[0], tensors)
    return GgufFile(files[0].metadata, tensors)


def _check_tensors(first: GgufFile, tensors: Sequence[Entry]) -> None:
    expected = first.metadata.get("split.tensors.count", len(tensors))
    if len(tensors) != expected:
        raise ModelError(
            f"the parts of the model have {len(tensors)} tensors, expected {short(expected)}; download the model again"
        )
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise ModelError(f"two parts of the model have a tensor {short(tensor.name)}; download the model again")
        names.add(tensor.name)
