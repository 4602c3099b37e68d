"""What every tokenizer offers. Text is bytes underneath: a token is a fixed run of bytes, or control."""

from typing import Protocol


class Tokenizer(Protocol):
    """Text to ids and back.

    `pieces` gives exact bytes, so that a stream can be decoded token by token without ever splitting a UTF-8
    sequence: concatenate, then decode incrementally.
    """

    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    strips_leading_space: bool
    """SentencePiece adds a space before the first word; a decoded text that starts a message drops it."""
    control: dict[str, int]
    """Names of the control tokens, to ids."""

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        """Ids of `text`. With `parse_control`, names of control tokens in the text become those tokens;
        without, they are plain text. `add_bos` puts the begin token first if the model uses one."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that this token stands for; empty for control tokens and for ids without text."""
        ...

    def name(self, token: int) -> str:
        """How the token is shown in logprobs and `/tokenize`: its text, or a control token's name."""
        ...

    def decode(self, tokens: list[int], *, keep_control: bool = False) -> str:
        """Text of the tokens: control tokens left out or by name, invalid UTF-8 replaced, leading space as encoded."""
        ...
