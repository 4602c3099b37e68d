"""Messages as the versions of mistral-common take them."""

from collections.abc import Mapping, Sequence
from typing import Any

from model.chat.conversation import Message
from model.chat.order import SPOKEN, with_late_systems
from model.chat.reasoning import PARTS, check_thought

CALLS_OR_TEXT = ("v1", "v2", "v3")
"""Versions in which a message has either calls or text."""
SYSTEM_THOUGHTS = ("v13",)
"""Versions in which a system message may have a thinking part."""


def fitted(messages: Sequence[Message], version: str, *, thinks: bool) -> list[Message]:
    """Fit the messages to a version. `thinks`: its tokenizer has the marks of thoughts.

    Raises ParameterError("messages") for thinking parts that the version does not have.
    """
    for index, message in enumerate(messages):
        allowed = thinks if message["role"] == "assistant" else version in SYSTEM_THOUGHTS
        check_thought(message, index, f"this model's tokenizer {version}", allowed=allowed)
    messages = [_with_media(message) for message in messages]
    told = _with_functions(messages) if version == "v2" else _without_names(messages)
    ordered = with_late_systems(told, SPOKEN)
    return _with_calls_alone(ordered) if version in CALLS_OR_TEXT else ordered


MEDIA_PARTS: Mapping[str, Message] = {
    "image": {"type": "image_url", "image_url": ""},
    "audio": {"type": "input_audio", "input_audio": "unread"},
}
"""An image and audio as mistral-common takes them: our encoders never read the content."""


def _with_media(message: Message) -> Message:
    """Return the message with its images and audio as mistral-common takes them."""
    if PARTS not in message:
        return message
    return {**message, PARTS: [MEDIA_PARTS.get(part["type"], part) for part in message[PARTS]]}


def _without_names(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [{key: value for key, value in message.items() if key != "name"} for message in messages]


def _with_functions(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Give each result the name of its function: v2 writes it, and most clients leave it out."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
    found = [message.get("name") or names.get(message.get("tool_call_id", "")) for message in messages]
    return [
        {**message, "name": name} if message["role"] == "tool" and name else message
        for message, name in zip(_without_names(messages), found, strict=True)
    ]


def _with_calls_alone(messages: Sequence[Message]) -> list[Message]:
    """Remove the text of the assistant that stands directly before its calls."""
    told: list[Message] = []
    for message in reversed(messages):
        if message.get("tool_calls"):
            told.append({**message, "content": ""})
        elif not (message["role"] == "assistant" and told and told[-1].get("tool_calls")):
            told.append(message)
    return told[::-1]
