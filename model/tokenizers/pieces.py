"""Text of a token sequence from the bytes of its pieces: the same for every tokenizer."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from model.tokenizers.base import Tokenizer


def shown(piece: bytes) -> str:
    """A piece as lists of logprobs show it; one that is no whole text as OpenAI writes it: `bytes:\\xf0\\x9f`."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def bytes_of(tokenizer: Tokenizer, *, keep_control: bool | frozenset[str]) -> Callable[[int], bytes]:
    """Token -> bytes: its piece; with `keep_control` a control token, or one of those, gives its name, not nothing."""
    if not keep_control:
        return tokenizer.piece
    kept = tokenizer.control if keep_control is True else keep_control
    names = {token: name.encode() for name, token in tokenizer.control.items() if name in kept}
    return lambda token: names.get(token) or tokenizer.piece(token)


def decode_pieces(tokenizer: Tokenizer, tokens: list[int], *, keep_control: bool) -> str:
    """Concatenated pieces as UTF-8, invalid bytes replaced, without the space that encoding put first."""
    data = b"".join(map(bytes_of(tokenizer, keep_control=keep_control), tokens))
    if tokenizer.strips_leading_space:
        data = data.removeprefix(b" ")
    return data.decode("utf-8", errors="replace")


def encode_inner(tokenizer: Tokenizer, text: str, *, parse_control: bool = False) -> list[int]:
    """Ids of a text that others precede: without the space that SentencePiece puts before a first word."""
    if not tokenizer.strips_leading_space:
        return tokenizer.encode(text, add_bos=False, parse_control=parse_control)
    newline = tokenizer.encode("\n", add_bos=False, parse_control=False)
    return tokenizer.encode("\n" + text, add_bos=False, parse_control=parse_control)[len(newline) :]


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
