"""Messages of a conversation, checked for every chat format."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from model.chat.reasoning import PARTS, THOUGHT
from model.errors import ParameterError, quoted

Message = Mapping[str, Any]

NOTHING: Mapping[str, Any] = MappingProxyType({})
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
TEXTS = ("content", "name", THOUGHT)
FIELDS = (*TEXTS, PARTS, "tool_calls", "tool_call_id")


def checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages with only the fields that chat formats know. Raises ParameterError("messages")."""
    if not messages:
        raise ParameterError("messages", "messages must contain at least one message")
    for index, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise ParameterError(
                "messages",
                f"messages[{index}].role must be one of {', '.join(ROLES)}, got {quoted(message.get('role'))}",
            )
        if not isinstance(message.get("content"), str):
            raise ParameterError("messages", f"messages[{index}].content must be a string")
    return [
        {"role": ROLES[message["role"]]} | {key: _known(message[key], key) for key in FIELDS if key in message}
        for message in messages
    ]


def _known(value: Any, key: str) -> Any:
    """Return the value of a field; parts of type image have nothing beside the type."""
    return [{"type": "image"} if part["type"] == "image" else part for part in value] if key == PARTS else value
