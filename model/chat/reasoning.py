"""Styles of reasoning: the marks around the thought that a model writes before its answer, and thoughts of earlier
answers in messages.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from model.errors import ParameterError, quoted
from model.tokenizers.base import Tokenizer
from model.tokenizers.roles import THOUGHT_TAGS

THOUGHT = "reasoning_content"
"""The key of a message with the thought before its content."""
PARTS = "parts"
"""The key of a message with parts in order: a system message with thoughts, an assistant's whose thought is open, or a
user's or a tool's with images.

Parts of type text and thinking are those of Mistral's API. A part of type image stands for the next image of the
conversation. The content of such a message has the text alone."""
EFFORT = "reasoning_effort"
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[str, ...] = get_args(Effort)
"""Values of `reasoning_effort` that requests have, in rising order."""
SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates that turn reasoning on or off."""
Way = Literal["field", "chunks", "text"]


@dataclass(frozen=True, slots=True)
class Marks:
    """The texts around a thought. `trims`: white space beside them belongs to the marks, not to thought or answer."""

    opening: str
    closing: str
    trims: bool


STYLES: Mapping[str, Marks] = {
    "tokens": Marks("[THINK]", "[/THINK]", trims=False),
    "tags": Marks(*THOUGHT_TAGS, trims=True),
}
"""tokens: Mistral's control tokens, from tokenizer version 13 on. tags: text, or tokens of these names."""


def style_of_template(source: str, tokenizer: Tokenizer) -> str | None:
    """Return the style that a chat template writes, or removes from earlier answers; None if it has neither."""
    if STYLES["tokens"].opening in source and has_tokens(tokenizer):
        return "tokens"
    marks = STYLES["tags"]
    return "tags" if marks.opening in source or marks.closing in source else None


def has_tokens(tokenizer: Tokenizer) -> bool:
    """Return whether the tokenizer has the control tokens of the style "tokens"."""
    marks = STYLES["tokens"]
    return {marks.opening, marks.closing} <= tokenizer.control.keys()


# Thoughts in messages


def check_thought(message: Mapping[str, Any], index: int, writer: str, *, allowed: bool) -> None:
    """Raise ParameterError("messages") for a thinking part in a message, unless `writer` can write it there."""
    if not allowed and any(part["type"] == "thinking" for part in message.get(PARTS, ())):
        raise ParameterError(
            "messages",
            f"messages[{index}] of role {message['role']} has a thinking part, which {writer} cannot write there: send "
            "it as text, or leave it out",
        )


def way_of_template(source: str, style: str | None) -> Way | None:
    """Return how a template takes the thought of an earlier answer; None if it takes none."""
    if THOUGHT in source:
        return "field"
    if style == "tokens":
        return "chunks" if "thinking" in source else None
    return "text" if style == "tags" else None


def with_thought(message: Mapping[str, Any], way: Way | None) -> Mapping[str, Any]:
    """Return the message with its thought where the format expects it, or without."""
    if PARTS in message:
        return {key: value for key, value in message.items() if key != PARTS} | {"content": message[PARTS]}
    if way == "field" or THOUGHT not in message:
        return message
    thought, content = message[THOUGHT], message["content"]
    plain = {key: value for key, value in message.items() if key != THOUGHT}
    if not thought or message["role"] != "assistant" or way is None:
        return plain
    if way == "text":
        marks = STYLES["tags"]
        return plain | {"content": f"{marks.opening}\n{thought}\n{marks.closing}\n\n{content}"}
    text = [{"type": "text", "text": content}] if content else []
    return plain | {"content": [{"type": "thinking", "thinking": thought}, *text]}


# Variables of chat formats


def switched(known: Collection[str], efforts: Collection[str], on: bool | None, effort: str | None) -> dict[str, Any]:
    """Return the variables that make a model reason, or not. None: the model decides.

    `known` are the variables of its chat format. `efforts` are the values of `reasoning_effort`, none for any.
    """
    if on is None:
        return {}
    values: dict[str, Any] = {name: on for name in SWITCHES if name in known}
    only_switches = not on and values and efforts and "none" not in efforts
    if EFFORT in known and not only_switches:
        values[EFFORT] = (effort or strongest(efforts)) if on else "none"
    return values


def strongest(efforts: Collection[str]) -> str:
    """Return the strongest of the efforts; "high" where any passes, or none has a known rank."""
    known = [effort for effort in EFFORTS if effort in efforts and effort != "none"]
    return known[-1] if known else next((effort for effort in efforts if effort != "none"), "high")


def check_effort(effort: Any, efforts: Collection[str]) -> None:
    """Raise ParameterError for an effort that the chat format does not know. No `efforts`: it takes any."""
    if effort is not None and efforts and effort not in efforts:
        known = ", ".join(efforts)
        raise ParameterError(EFFORT, f"{EFFORT} of this model must be one of {known}, got {quoted(effort)}")
