"""A small vocabulary: a token is one byte, or sometimes several bytes. Grammars that harm who compiles them."""

from model.grammar.vocabulary import Vocabulary
from model.machine.helper import First

END = 0


PIECES = (b"", *(bytes([n]) for n in range(1, 128)), b"ab", b"ba", b'":', b"bab")


WIDTH = len(PIECES) + 5
"""The logits are wider than the vocabulary, and no multiple of 32."""


VOCABULARY = Vocabulary((b"<end>", *PIECES[1:], *[b""] * (WIDTH - len(PIECES))), (END,), (END,))


def token(text: str) -> int:
    return PIECES.index(text.encode())


FIRST = First({"vocabulary": VOCABULARY.to_json(), "seconds": 2.0})
GOOD, BAD = 'start: "a"', "start: nonsense"
ENDLESS = 'start: "a" more\nmore: T more T\nT: /b*/'
"""A rule that leads to itself through nothing: llguidance never returns."""
LARGE = "start: A\nA: " + " & ".join(f"/(.*a.{{{n}}}b.*)/" for n in range(30))
"""It has 2^30 states: compiling it takes more memory than there is."""
