"""The bound for digits in JSON numbers, which a grammar of a schema lets go on without end."""

from typing import NamedTuple, Self

from model.grammar.vocabulary import Vocabulary, bits

MAX_DIGITS = 32
"""Digits in a row after which a number must go on or end otherwise. A small model would write 0 until max_tokens."""


class Numbers(NamedTuple):
    """The bound for one vocabulary: sets of the tokens that begin with a digit, and of those that may follow one."""

    pieces: tuple[bytes, ...]
    digits: int
    others: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Self:
        ends = bits(vocabulary.ends)
        return cls(
            vocabulary.pieces, vocabulary.beginning(b"0123456789"), vocabulary.beginning(b".eE,]} \t\r\n") | ends
        )

    def tail(self, before: bytes, token: int) -> bytes:
        """Return the last bytes of a text after one more token."""
        return (before + self.pieces[token])[-MAX_DIGITS:]

    def bounded(self, mask: bytes, tail: bytes) -> bytes:
        """Remove digits from the mask where a number has enough of them and something else may follow.

        Inside a string a letter or a quote may follow, or only digits: then the mask stays.
        """
        if len(tail) < MAX_DIGITS or not tail.isdigit():
            return mask
        without = int.from_bytes(mask, "little") & ~self.digits
        return without.to_bytes(len(mask), "little") if without and not without & ~self.others else mask
