"""Styles of reasoning: the marks around the thoughts that a model writes before its answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from model.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class Marks:
    """The texts around a thought. `trims`: white space beside them belongs to the marks, not to thought or answer."""

    opening: str
    closing: str
    trims: bool


STYLES: Mapping[str, Marks] = {
    "tokens": Marks("[THINK]", "[/THINK]", trims=False),
    "tags": Marks("<think>", "</think>", trims=True),
}
"""tokens: Mistral's control tokens, from tokenizer version 13 on. tags: text, or tokens of these names."""


def style_of_template(source: str, tokenizer: Tokenizer) -> str | None:
    """The style that a chat template writes, or removes from earlier answers; None if it has neither."""
    if STYLES["tokens"].opening in source and has_tokens(tokenizer):
        return "tokens"
    marks = STYLES["tags"]
    return "tags" if marks.opening in source or marks.closing in source else None


def has_tokens(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer has the control tokens of the style "tokens"."""
    marks = STYLES["tokens"]
    return {marks.opening, marks.closing} <= tokenizer.control.keys()
