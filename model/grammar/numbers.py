"""The bound for digits in JSON numbers, which a grammar of a schema lets go on without end."""

from typing import NamedTuple, Self

from model.grammar.vocabulary import Vocabulary, bits

MAX_DIGITS = 32
"""Digits in a row after which a number must go on or end otherwise. A small model would write 0 until max_tokens."""
DIGITS = b"0123456789"
OTHERS = b".eE,]} \t\r\n"
"""Bytes that may follow a digit of a number, beside digits."""


class Numbers(NamedTuple):
    """The bound for one vocabulary. Sets of tokens are integers with a bit for each token."""

    pieces: tuple[bytes, ...]
    digits: int
    others: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Self:
        ends = bits(vocabulary.ends)
        return cls(vocabulary.pieces, vocabulary.beginning(DIGITS), vocabulary.beginning(OTHERS) | ends)

    def n_digits(self, before: int, token: int) -> int:
        """The number of digits at the end of a text, which had `before` at its end and then got a token."""
        piece = self.pieces[token]
        n_after = len(piece) - len(piece.rstrip(DIGITS))
        return before + n_after if n_after == len(piece) else n_after

    def bounded(self, mask: bytes, n_digits: int) -> bytes:
        """The mask without further digits, where a number has enough of them and may have something else.

        A text that is no number could go on with a letter or a quote, or with nothing but digits.
        """
        if n_digits < MAX_DIGITS:
            return mask
        without = int.from_bytes(mask, "little") & ~self.digits
        return without.to_bytes(len(mask), "little") if without and not without & ~self.others else mask
