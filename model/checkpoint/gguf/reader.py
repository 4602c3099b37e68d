"""The structure of GGUF files: metadata, and where each tensor is. Every length is checked against the file's size.

A file has a header (magic, version, number of tensors and of metadata fields), the fields, a description of each
tensor, and the tensors' bytes, each at a multiple of the alignment. Numbers are little-endian. The file is mapped, so
that nothing is allocated for a length that a damaged file claims. No torch.
"""

import mmap
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from model.checkpoint.gguf.index import KINDS, READABLE, TensorEntry
from model.errors import ModelError, one_line, short

VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
SCALARS: Mapping[int, Any] = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""Formats of `struct` by GGUF's number of a value type."""
STRING, ARRAY = 8, 9
LENGTH = struct.Struct("<Q")
MIN_FIELD_BYTES, MIN_TENSOR_BYTES = 13, 32
"""A field has at least the length of its name, a type and a byte; a tensor has at least one dimension."""


class Damaged(ValueError):
    """A fault in the file: what was expected, what was found."""


class Unknown(ValueError):
    """A part of a whole file that Noria does not read: what it is, what Noria reads."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata by name (an array of numbers is a view of the mapped file), and the tensors in the file's order."""

    metadata: Mapping[str, Any]
    tensors: Sequence[TensorEntry]


def read_gguf(path: Path) -> GgufFile:
    """Read the structure of a whole file.

    Raises ModelError, one line, for a file that is cut, damaged or no GGUF, and for one newer than Noria.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        return _read(_Cursor(data))
    except (Damaged, OSError) as error:
        raise ModelError(f"{path.name} is not a readable GGUF file: {one_line(error)}; download it again") from error
    except Unknown as error:
        raise ModelError(f"{path.name} has {one_line(error)}") from error


def read_parts(paths: Sequence[Path]) -> GgufFile:
    """Read the metadata of the first file and the tensors of all; an entry's `file` is the number of its file from 0.

    Raises ModelError, one line, for a damaged file and for parts that do not belong together.
    """
    files = [read_gguf(path) for path in paths]
    for number, (path, file) in enumerate(zip(paths, files, strict=True)):
        part, count = (file.metadata.get(f"split.{name}", default) for name, default in (("no", 0), ("count", 1)))
        if not isinstance(part, int) or not isinstance(count, int):
            raise ModelError(f"{path.name} says it is part {short(part)} of {short(count)}, expected two numbers")
        found = (part, max(1, count))
        if found != (number, len(paths)):
            raise ModelError(
                f"{path.name} says it is part {found[0] + 1} of {found[1]}, expected {number + 1} of {len(paths)}; "
                "download the model again, and do not rename its files"
            )
    tensors = [replace(tensor, file=number) for number, file in enumerate(files) for tensor in file.tensors]
    metadata = files[0].metadata
    expected = metadata.get("split.tensors.count", len(tensors))
    if len(tensors) != expected:  # the head and the divisors of RoPE may be missing elsewhere
        raise ModelError(
            f"the parts of the model have {len(tensors)} tensors, expected {short(expected)}; download the model again"
        )
    # Lists, because a mapped file may be cut later, and to read what it had would end the process.
    values = ((name, found.tolist() if isinstance(found, memoryview) else found) for name, found in metadata.items())
    return GgufFile(dict(values), tensors)


class Strings:
    """An array of strings as the file has it. A list takes four times the memory. `starts` has one more."""

    def __init__(self, data: bytes, starts: Sequence[int]) -> None:
        self._data = data
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> str:
        return self._data[self._starts[index] : self._starts[index + 1] - 8].decode()

    def __repr__(self) -> str:
        return repr(list(self))

    def __iter__(self) -> Iterator[str]:
        return (self._data[start : stop - 8].decode() for start, stop in pairwise(self._starts))


class _Cursor:
    """A place in the file's bytes, which moves on with what is read."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.data = data
        self.place = 0
        self._size = len(data)

    @property
    def left(self) -> int:
        return self._size - self.place

    def skip(self, n_bytes: int, what: str) -> int:
        """Move over `n_bytes`; returns where they start."""
        if n_bytes > self.left:
            raise Damaged(f"{what} at byte {self.place} needs {n_bytes} bytes, the file has {self.left} more")
        self.place += n_bytes
        return self.place - n_bytes

    def number(self, code: str, what: str) -> Any:
        return struct.unpack_from("<" + code, self.data, self.skip(struct.calcsize("<" + code), what))[0]

    def string(self, what: str) -> str:
        start = self.place + 8
        self.place = stop = start + int.from_bytes(self.data[self.place : start], "little")
        if stop > self._size:
            raise Damaged(f"{what} at byte {start} needs {stop - start} bytes, the file ends at byte {self._size}")
        try:
            return self.data[start:stop].decode()
        except UnicodeDecodeError:
            raise Damaged(f"{what} at byte {start} is not UTF-8") from None

    def strings(self, what: str) -> Strings:
        """Read an array of strings. Without a call for each: a vocabulary has hundreds of thousands."""
        n_strings, begin, starts = self.count(f"strings in {what}", 8), self.place, array("Q")
        data, length, add = self.data, LENGTH.unpack_from, starts.append
        with suppress(struct.error, UnicodeDecodeError):
            for _ in range(n_strings):
                start = self.place + 8
                stop = start + length(data, self.place)[0]
                if stop > self._size:
                    break
                data[start:stop].decode()
                add(start - begin)
                self.place = stop
        if len(starts) < n_strings:
            self.string(what)  # says what is wrong
        add(self.place + 8 - begin)
        return Strings(self.data[begin : self.place], starts)

    def count(self, what: str, least_bytes: int) -> int:
        """Read a number of things of at least so many bytes."""
        number = self.number("Q", f"the number of {what}")
        if number * least_bytes > self.left:
            raise Damaged(f"it counts {number} {what}, but has only {self.left} more bytes")
        return int(number)


def _read(cursor: _Cursor) -> GgufFile:
    magic = bytes(cursor.data[:4])
    if magic != b"GGUF":
        raise Damaged(f"it starts with {magic!r}, expected b'GGUF'")
    cursor.skip(4, "the magic")
    version = cursor.number("I", "the version")
    if version & 0xFFFF == 0:
        raise Damaged("it has another byte order than this machine; convert the file")
    if version not in VERSIONS:
        raise Unknown(f"version {version} of GGUF; Noria reads {' and '.join(map(str, VERSIONS))}")
    n_tensors = cursor.count("tensors", MIN_TENSOR_BYTES)
    n_fields = cursor.count("metadata fields", MIN_FIELD_BYTES)
    metadata: dict[str, Any] = {}
    for _ in range(n_fields):
        name = cursor.string("the name of a metadata field")
        if name in metadata:
            raise Damaged(f"it has the metadata field {short(name)} twice")
        metadata[name] = _value(cursor, cursor.number("I", "a value type"), f"the field {short(name)}")
    return GgufFile(metadata, _tensors(cursor, n_tensors, _alignment(metadata)))


def _value(cursor: _Cursor, kind: int, what: str) -> Any:
    if kind in SCALARS:
        return cursor.number(SCALARS[kind], what)
    if kind == STRING:
        return cursor.string(what)
    if kind != ARRAY:
        raise Damaged(f"{what} has value type {kind}, expected 0..{max(SCALARS)}")
    inner = cursor.number("I", f"the value type of {what}")
    if inner == STRING:
        return cursor.strings(what)
    if inner not in SCALARS:
        raise Damaged(f"{what} has elements of value type {inner}, expected a number or a string")
    size = struct.calcsize("<" + SCALARS[inner])
    n_bytes = cursor.count(f"numbers in {what}", size) * size
    start = cursor.skip(n_bytes, what)
    return memoryview(cursor.data)[start : start + n_bytes].cast(SCALARS[inner])


def _alignment(metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        raise Damaged(f"its alignment is {short(alignment)}, expected a power of two of at least 8")
    return alignment


def _tensors(cursor: _Cursor, n_tensors: int, alignment: int) -> list[TensorEntry]:
    """Read the descriptions of tensors, each inside the file."""
    described = [_described(cursor) for _ in range(n_tensors)]
    start = -(-cursor.place // alignment) * alignment
    found = list(_placed(described, start, alignment))
    if len({tensor.name for tensor in found}) < n_tensors:
        raise Damaged("it has two tensors of one name")
    for one, other in pairwise(sorted(found, key=lambda tensor: tensor.offset)):
        if (end := one.offset + one.n_bytes) > other.offset:  # blocks of another size under a known number, too
            place = f"ends at byte {end}, and {short(other.name)} begins at {other.offset}"
            raise Damaged(f"its tensor {short(one.name)} in {one.kind} {place}")
    last = max(found, key=lambda tensor: tensor.offset + tensor.n_bytes, default=None)
    if last is not None and (end := last.offset + last.n_bytes) > len(cursor.data):
        raise Damaged(f"its tensor {short(last.name)} ends at byte {end}, the file at byte {len(cursor.data)}")
    return found


def _described(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Return the name, shape with the rows first, number of the kind, and place after the first tensor."""
    name = cursor.string("the name of a tensor")
    what = f"the tensor {short(name)}"
    n_dimensions = cursor.number("I", f"the number of dimensions of {what}")
    if not 1 <= n_dimensions <= MAX_DIMENSIONS:
        raise Damaged(f"{what} has {n_dimensions} dimensions, expected 1..{MAX_DIMENSIONS}")
    sizes = [cursor.number("Q", what) for _ in range(n_dimensions)]
    return name, tuple(reversed(sizes)), cursor.number("I", what), cursor.number("Q", what)


def _placed(
    described: Sequence[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
) -> Iterator[TensorEntry]:
    kinds = {number: (kind, block, n_bytes) for kind, (number, block, n_bytes) in KINDS.items()}
    for name, shape, number, offset in described:
        what = f"the tensor {short(name)}"
        if number not in kinds:
            raise Unknown(f"{what} of GGUF's kind number {number}; Noria reads {', '.join(READABLE)}")
        kind, block, n_bytes = kinds[number]
        if not prod(shape) or shape[-1] % block:
            raise Damaged(f"{what} has shape {list(shape)}, expected rows of whole blocks of {block} values")
        if offset % alignment:
            raise Damaged(f"{what} starts at {offset}, expected a multiple of {alignment}")
        yield TensorEntry(name, kind, shape, start + offset, prod(shape) // block * n_bytes)
