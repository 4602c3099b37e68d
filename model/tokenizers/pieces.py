"""Functions of all tokenizers: a text after another one, and control tokens by name in a text."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, takewhile
from typing import AnyStr

from model.tokenizers.base import Tokenizer


def encode_inner(tokenizer: Tokenizer, text: str, *, parse_control: bool = False) -> list[int]:
    """Encode a text that follows other text: without the space that SentencePiece adds before the first word."""
    if not tokenizer.strips_leading_space:
        return tokenizer.encode(text, add_bos=False, parse_control=parse_control)
    newline = tokenizer.encode("\n", add_bos=False, parse_control=False)
    return tokenizer.encode("\n" + text, add_bos=False, parse_control=parse_control)[len(newline) :]


def control_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of all control tokens' names, the longest first. It matches nothing if there are no names."""
    ordered = sorted(set(names))
    return re.compile(_any_of(ordered) if ordered else r"(?!)")


def _any_of(names: list[str]) -> str:
    """Return a pattern of sorted names, with their common beginnings once: a search does not try a thousand names."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(names[0], names[-1], strict=False))
    start = "".join(char for char, _ in pairs)
    rests = [name[len(start) :] for name in names if name != start]
    branches = "|".join(_any_of(list(group)) for _, group in groupby(rests, key=lambda rest: rest[0]))
    if not branches:
        return re.escape(start)
    return f"{re.escape(start)}(?:{branches})" + "?" * (names[0] == start)


def n_begun(text: AnyStr, mark: AnyStr) -> int:
    """Return the length of the longest beginning of `mark`, but not all of it, with which `text` ends.

    So much of the text may belong to a mark that has not arrived yet. Worked example: "a <th", "<think>" -> 3.
    """
    at = text.find(mark[:1], max(0, len(text) - len(mark) + 1))
    while at >= 0 and not mark.startswith(text[at:]):
        at = text.find(mark[:1], at + 1)
    return len(text) - at if at >= 0 else 0


def encode_with_control(
    text: str, control: Mapping[str, int], pattern: re.Pattern[str], encode: Callable[[str], list[int]]
) -> Iterator[int]:
    """Yield the ids of `text`: names of control tokens become those tokens, `encode` takes the text between them."""
    start = 0
    for match in pattern.finditer(text):
        yield from encode(text[start : match.start()])
        yield control[match[0]]
        start = match.end()
    yield from encode(text[start:])
