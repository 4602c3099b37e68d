"""The interface of all tokenizers. A token stands for a fixed sequence of bytes, or is a control token."""

from typing import Protocol


class Tokenizer(Protocol):
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

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        """Encode `text` to ids, after the begin token if `add_bos` and the model has one.

        With `parse_control` the names of control tokens in the text become those tokens, else they are plain text.
        """
        ...

    def piece(self, token: int) -> bytes:
        """Return the bytes that this token stands for; empty for ids outside the vocabulary.

        Control tokens have no bytes. A mark of a chat template that no file calls special keeps its text.
        """
        ...

    def name(self, token: int) -> str:
        """Return the token as text for logprobs and `/tokenize`: its piece, or the name of a control token."""
        ...

    def decode(self, tokens: list[int], *, keep_control: bool = False) -> str:
        """Decode the tokens. Control tokens are left out or named, invalid UTF-8 is replaced."""
        ...
