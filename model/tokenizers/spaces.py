"""Long white space in a text, divided into words as Tekken's pattern does. Its regular expression would fail there.

The pattern ends: `| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`. White space is a word up to its
last line break, then a word up to its end, but without its last character if a word follows.
"""

import re
import unicodedata
from collections.abc import Iterator

MAX_SPACES = 2**16
"""White space of this length is long. The expression keeps a state for each character; it fails at a million."""
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space as Unicode defines it. Python's `\\s` has U+001C to U+001F too."""
_IS_SPACE = re.compile(f"[{_SPACE}]")
_BREAKS = re.compile(r"[\r\n]*")


def parts(text: str, max_spaces: int = MAX_SPACES) -> Iterator[tuple[str, bool]]:
    """The text in parts whose ids together are those of the text, and whether a part is one word of white space."""
    start = 0
    for match in re.finditer(f"[{_SPACE}]{{{max_spaces},}}", text):
        begin, end = match.span()
        if _takes_breaks(text, begin) and (breaks := _BREAKS.match(text, begin)):
            begin = breaks.end()
            if begin == end:
                continue
        middle = max(begin, 1 + text.rfind("\r", begin, end), 1 + text.rfind("\n", begin, end))
        tail = end if end == len(text) else max(middle, end - 1)
        yield text[start:begin], False
        yield text[begin:middle], True
        yield text[middle:tail], True
        start = tail
    yield text[start:], False


def _takes_breaks(text: str, end: int) -> bool:
    """Whether the word that ends here takes the line breaks that follow: a word of punctuation does.

    Marks, such as accents, belong to a word of letters, and so does the one character before them.
    """
    kinds = ""
    while end and (kind := unicodedata.category(text[end - 1])[0]) not in "LN" and not _IS_SPACE.match(text, end - 1):
        kinds = ("M" if kind == "M" else "P") + kinds
        end -= 1
    after_space = end > 0 and text[end - 1] == " "
    return kinds.endswith("P") or "PP" in kinds or (after_space and kinds.startswith("P"))
