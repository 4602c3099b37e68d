"""The names of a GGUF model's files: one, or parts named `name-00001-of-00003.gguf`."""

import re
from pathlib import Path

from model.errors import ModelError

_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def find_parts(path: Path) -> tuple[Path, ...]:
    """Find all files of the model whose first file is `path`. Raises ModelError for another part or a missing one."""
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
    """Return the name of a part; numbers begin at 1."""
    return f"{name}-{number:05d}-of-{count:05d}{suffix}"


def whole_name(stem: str) -> str:
    """Return the stem of a file without the number of its part."""
    match = _PART.fullmatch(f"{stem}.gguf")
    return match["name"] if match else stem
