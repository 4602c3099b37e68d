"""The limits on the structure of JSON, which hold before anything builds objects from it, and the notes on a body.

A parser holds the interpreter until it has read the whole text: a megabyte of empty lists would stop all other threads.
The parser itself refuses more than 200 levels, and numbers of more than 4300 digits, at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from service.schema.fields import MAX_ITEMS

MAX_ELEMENTS = 2**19
"""Four prompts of 128k token ids."""
LIMITS = (
    ("lists and objects", b"[{", 2 * MAX_ITEMS),
    ("names of fields", b":", 3 * MAX_ITEMS),
    ("quotation marks around strings", b'"', 10 * MAX_ITEMS),
    ("fractions, exponents and booleans", b".eE", 2**16),
    ("commas between elements", b",", MAX_ELEMENTS),
)
"""The things that are counted outside strings, the bytes that stand for them, and the limit."""
SLICE_BYTES = 2**16
"""The bytes that are scanned at once. Other threads run between two slices."""


class StructureError(ValueError):
    """A text of JSON beyond a limit. The message names the limit and what was counted."""


class Structure:
    """The counts of all JSON texts in one request: its body, and texts of JSON inside strings of the body."""

    def __init__(self) -> None:
        self._counts = [0] * len(LIMITS)

    def add(self, text: bytes, name: str = "the body") -> None:
        """Count what is in a text. Raises StructureError as soon as a limit is passed; `name` is the text's.

        The text need not be valid JSON: the counts are right up to its first fault, where every parser stops.
        """
        for outside in _outside_strings(text):
            for index, (what, marks, limit) in enumerate(LIMITS):
                self._counts[index] += sum(map(outside.count, marks))
                if (count := self._counts[index]) > limit:
                    raise StructureError(f"{name} has at least {count} {what}, the limit is {limit}")


def _outside_strings(text: bytes) -> Iterator[bytes]:
    """Yield the text with empty strings in place of all strings, a slice at a time."""
    escape, inside = b"", False
    for start in range(0, len(text), SLICE_BYTES):
        part = (escape + text[start : start + SLICE_BYTES]).replace(b"\\\\", b"")
        escape = part[-1:] if part.endswith(b"\\") else b""
        pieces = part.removesuffix(b"\\").replace(b'\\"', b"").split(b'"')
        contents = slice(0 if inside else 1, None, 2)
        pieces[contents] = [b""] * len(pieces[contents])
        inside ^= len(pieces) % 2 == 0
        yield b'"'.join(pieces)


@dataclass(slots=True)
class BodyReading:
    """The context in which one body is validated.

    With `lenient`, all fields without effect pass; `ignores` says whether any passed that the answer must name.
    """

    lenient: bool = False
    ignores: bool = False
    structure: Structure = field(default_factory=Structure)
