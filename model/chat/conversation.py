"""Messages of a conversation, checked: what every chat format is given."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from model.errors import ParameterError

Message = Mapping[str, Any]

NOTHING: Mapping[str, Any] = MappingProxyType({})
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
TEXTS = ("content", "name")
FIELDS = (*TEXTS, "tool_calls", "tool_call_id")


def checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Known roles and fields alone. Raises ParameterError("messages")."""
    if not messages:
        raise ParameterError("messages", "messages must hold at least one message")
    for index, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise ParameterError(
                "messages", f"messages[{index}].role must be one of {', '.join(ROLES)}, got {message.get('role')!r}"
            )
        if not isinstance(message.get("content"), str):
            raise ParameterError("messages", f"messages[{index}].content must be text")
    return [
        {"role": ROLES[message["role"]]} | {key: message[key] for key in FIELDS if key in message}
        for message in messages
    ]
