"""Text of a token sequence from the bytes of its pieces: the same for every tokenizer."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from model.tokenizers.base import Tokenizer


def decode_pieces(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Concatenated pieces as UTF-8, invalid bytes replaced, without the space that encoding put first."""
    data = b"".join(map(tokenizer.piece, tokens))
    if tokenizer.strips_leading_space:
        data = data.removeprefix(b" ")
    return data.decode("utf-8", errors="replace")


def control_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Matches any control token's name, the longest first; nothing where there are none."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def encode_with_control(
    text: str, control: Mapping[str, int], pattern: re.Pattern[str], encode: Callable[[str], list[int]]
) -> Iterator[int]:
    """Ids of `text` with control tokens' names read as those tokens, the stretches between them by `encode`."""
    start = 0
    for match in pattern.finditer(text):
        yield from encode(text[start : match.start()])
        yield control[match[0]]
        start = match.end()
    yield from encode(text[start:])
