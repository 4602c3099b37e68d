"""The tokens of a model as grammars see them. No torch, no llguidance."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from model.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes of every token by id (names for control tokens), the control tokens, and the tokens that end an output."""

    pieces: tuple[bytes, ...]
    control: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, ends: Sequence[int], size: int) -> "Vocabulary":
        """Make a tokenizer's vocabulary. `size` is the width of the logits; ids without a token are never allowed."""
        names = {token: name.encode() for name, token in tokenizer.control.items()}
        pieces = [names.get(token) or tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
        padding = [b""] * (size - len(pieces))
        return cls((*pieces, *padding), tuple(sorted(names.keys())), tuple(ends))

    def beginning(self, chars: bytes) -> int:
        """Return the tokens of text that begin with one of these bytes, as a set of `bits`."""
        hidden = {*self.control, *self.ends}
        return bits(n for n, piece in enumerate(self.pieces) if piece and piece[0] in chars and n not in hidden)

    def to_json(self) -> str:
        """Write the vocabulary as JSON, for another process."""
        return json.dumps([[piece.decode("latin-1") for piece in self.pieces], self.control, self.ends])

    @classmethod
    def from_json(cls, text: str) -> "Vocabulary":
        """Invert `to_json`."""
        pieces, control, ends = json.loads(text)
        return cls(tuple(piece.encode("latin-1") for piece in pieces), tuple(control), tuple(ends))


def bits(tokens: Iterable[int]) -> int:
    """Return the set of tokens as an integer, a bit each, lowest first."""
    found = [*tokens]
    octets = bytearray(max(found, default=0) // 8 + 1)
    for token in found:
        octets[token // 8] |= 1 << token % 8
    return int.from_bytes(octets, "little")
