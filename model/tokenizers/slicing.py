"""Long texts, encoded in slices whose ids together are those of the whole text."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

SLICE_CHARS = 2**16
"""A slice takes about 20 ms."""

CUT = re.compile(r"(?<=[!-~\w])(?= [!-~\w])")
"""A place to cut: before a single space between two characters that are no spaces, of ASCII or of words. A word begins
there in every tokenizer that `huggingface.py` and `sentencepiece.py` let slice."""
CUT_IN_WORDS = re.compile(r"(?<=[^\W_])(?= [^\W_])")
"""The same between two letters or digits, where no control token ends or begins."""


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Slicing:
    """Slices of at least `chars` characters, up to the next place to cut. `pause` is called between two of them.

    `pause` may raise: the text is then no longer encoded.
    """

    chars: int = SLICE_CHARS
    pause: Callable[[], None] = _nothing

    def encode(
        self, text: str, encode: Callable[[str], list[int]], *, adds_space: bool, cut: re.Pattern[str] = CUT
    ) -> list[int]:
        """The ids of a text. `adds_space`: `encode` puts a space before every text, in place of the slice's own."""
        first, *others = self._slices(text, cut)
        ids = encode(first)
        for other in others:
            self.pause()
            ids += encode(other.removeprefix(" ") if adds_space else other)
        return ids

    def _slices(self, text: str, cut: re.Pattern[str]) -> Iterator[str]:
        start = searched = 0
        while len(text) - searched > self.chars:
            searched += self.chars
            if match := cut.search(text, searched, searched + self.chars):
                yield text[start : match.start()]
                start = searched = match.start()
        yield text[start:]


def words_begin_at_marks(pieces: Iterable[str]) -> bool:
    """Whether no piece has the mark of a space (U+2581) after another character: no merge then crosses a cut."""
    return all("▁" not in piece.lstrip("▁") and " " not in piece for piece in pieces)
