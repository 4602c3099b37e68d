"""Long texts, encoded in slices whose ids together are those of the whole text."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

SLICE_CHARS = 2**16
"""A slice takes about 20 ms."""

CUT = re.compile(r"(?<=[!-~\w])(?= [!-~\w])")
"""A place to cut: before a single space between two characters that are no spaces, of ASCII or of words. A word begins
there in every tokenizer that `huggingface.py`, `sentencepiece.py` and `tekken.py` let slice."""
CUT_IN_WORDS = re.compile(r"(?<=[^\W_])(?= [^\W_])")
"""The same between two letters or digits, where no control token ends or begins."""


def _nothing() -> None: ...


def _at_once(call: Callable[[], list[int]]) -> list[int]:
    return call()


@dataclass(frozen=True, slots=True)
class Slicing:
    """Slices of at least `chars` characters, up to the next place to cut. `pause` is called between two of them.

    `pause` may raise: the text is then no longer encoded. A slice of more than twice `chars` has no place to cut: its
    encoding is a call that `aside` makes.
    """

    chars: int = SLICE_CHARS
    pause: Callable[[], None] = _nothing
    aside: Callable[[Callable[[], list[int]]], list[int]] = _at_once

    def encode(
        self, text: str, encode: Callable[[str], list[int]], cut: re.Pattern[str] | None, *, adds_space: bool
    ) -> list[int]:
        """The ids of a text, which is cut where `cut` is found (None: nowhere).

        `adds_space`: `encode` puts a space before every text, in place of the slice's own.
        """
        first, *others = [text] if cut is None else self._slices(text, cut)
        ids = self._encode(first, encode)
        for other in others:
            self.pause()
            ids += self._encode(other.removeprefix(" ") if adds_space else other, encode)
        return ids

    def _encode(self, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        return encode(text) if len(text) <= 2 * self.chars else self.aside(lambda: encode(text))

    def _slices(self, text: str, cut: re.Pattern[str]) -> Iterator[str]:
        start = searched = 0
        while len(text) - searched > self.chars:
            searched += self.chars
            if match := cut.search(text, searched, searched + self.chars):
                yield text[start : match.start()]
                start = searched = match.start()
        yield text[start:]


WHOLE = Slicing()
"""Slices without pauses, for those who do not share their thread."""


def words_begin_at_marks(pieces: Iterable[str]) -> bool:
    """Whether no piece has the mark of a space (U+2581) after another character: no merge then crosses a cut."""
    return all("▁" not in piece.lstrip("▁") and " " not in piece for piece in pieces)
