"""Texts with runs of a character, where tokenizers differ: which of two equal pairs is joined first."""

from collections.abc import Iterator

CHARACTERS = (
    *(" ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u2009", "\u3000", "▁", "\u200b"),
    *("0", "1", "9", "½", "١"),
    *("a", "x", "e", "A", "Z", "é", "ß", "я", "中", "ا"),
    *("=", "-", "_", ".", "#", "*", "/", "\\", "(", '"', "'"),
    *("\u0301", "\u093c", "👍", "👨\u200d👩\u200d👧"),
)
"""Forty: white space, digits, letters, signs, combining marks, and emoji of one and of several characters."""
LENGTHS = (*range(1, 14), 16, 17, 18, 31, 32, 33, 64, 65, 129, 257, 400)


def runs() -> Iterator[str]:
    """A run alone, at each end of a word, and between two. Of spaces each length up to 400 is there."""
    assert len(CHARACTERS) == 40
    for character in CHARACTERS:
        for n in range(1, 401) if character == " " else LENGTHS:
            run = character * n
            yield from (run, f"{run}y", f"x{run}", f"x{run}y")
