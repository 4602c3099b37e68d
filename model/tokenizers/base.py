"""The base of all tokenizers. A token stands for a fixed sequence of bytes, or is a control token."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property


class Tokenizer(ABC):
    """Text to ids and back.

    `piece` returns exact bytes. A stream is decoded token by token: concatenate the bytes, decode incrementally.
    No UTF-8 sequence is ever split.
    """

    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    strips_leading_space: bool
    """Whether encoding adds a space before the first word (SentencePiece). Decoding from the start removes it."""
    control: dict[str, int]
    """Ids of the control tokens by name: what a text cannot spell."""

    @abstractmethod
    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        """Encode `text` to ids, after the begin token if `add_bos` and the model has one.

        With `parse_control` the names of control tokens in the text become those tokens, else they are plain text.
        """

    @abstractmethod
    def piece(self, token: int) -> bytes:
        """Return the bytes that this token stands for; empty for ids outside the vocabulary.

        Control tokens have no bytes. A mark of a chat template that no file calls special keeps its text.
        """

    @cached_property
    def _names(self) -> dict[int, str]:
        return {token: name for name, token in self.control.items()}

    def name(self, token: int) -> str:
        """Return the token as text for logprobs and `/tokenize`: its piece, or the name of a control token.

        A piece that is not valid UTF-8 is written as OpenAI writes it: `bytes:\\xf0\\x9f`.
        """
        piece = self.piece(token)
        try:
            return self._names.get(token) or piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def bytes_of(self, *, keep_control: bool | frozenset[str]) -> Callable[[int], bytes]:
        """Return a function from a token to its bytes: the name of a control token in `keep_control` (True: of all)."""
        if not keep_control:
            return self.piece
        named = self.control if keep_control is True else keep_control
        names = {token: name.encode() for token, name in self._names.items() if name in named}
        return lambda token: names.get(token) or self.piece(token)

    def decode(self, tokens: list[int], *, keep_control: bool = False) -> str:
        """Decode the tokens. Control tokens are left out or named, invalid UTF-8 is replaced.

        The leading space that encoding adds is removed.
        """
        data = b"".join(map(self.bytes_of(keep_control=keep_control), tokens))
        if self.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")
