"""A small vocabulary: a token is one byte, or sometimes several bytes."""

from model.grammar.compiler import Vocabulary

END = 0


PIECES = (b"", *(bytes([n]) for n in range(1, 128)), b"ab", b"ba", b'":', b"bab")


WIDTH = len(PIECES) + 5
"""The logits are wider than the vocabulary, and no multiple of 32."""


VOCABULARY = Vocabulary((b"<end>", *PIECES[1:], *[b""] * (WIDTH - len(PIECES))), (END,), (END,))


def token(text: str) -> int:
    return PIECES.index(text.encode())
