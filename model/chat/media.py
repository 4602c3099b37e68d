"""Images and audio in messages, and the control tokens that stand for them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

from model.chat.reasoning import PARTS
from model.errors import ParameterError
from model.tokenizers.base import Tokenizer

IMAGE, ROW_BREAK, IMAGE_END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
"""The control tokens of Pixtral: one of a chat format's for each image, and those that end its rows."""
AUDIO, BEGIN_AUDIO, TRANSCRIBE = "[AUDIO]", "[BEGIN_AUDIO]", "[TRANSCRIBE]"
"""The control tokens of Voxtral: one for each recording, that before it, that of a transcript."""
MEDIA_ROLES: Mapping[str, tuple[str, ...]] = {"image": ("user", "tool"), "audio": ("user",)}
"""The types of parts that are no text, each with the roles whose messages have them in some chat formats."""
ONE: Mapping[str, str] = {"image": "an image", "audio": "audio"}
MANY: Mapping[str, str] = {"image": "images", "audio": "audio"}


class ImageTokens(NamedTuple):
    """Ids of the control tokens that a model reads for an image. A chat format writes the first, once an image."""

    placeholder: int
    row_break: int
    end: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """Return the ids of a tokenizer; None if it has not all of these tokens."""
        return cls(*found) if (found := _ids(tokenizer, IMAGE, ROW_BREAK, IMAGE_END)) else None


class AudioTokens(NamedTuple):
    """Ids of the control tokens that a model reads for audio. A chat format writes both, once a recording."""

    placeholder: int
    begin: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """Return the ids of a tokenizer; None if it has not all of these tokens."""
        return cls(*found) if (found := _ids(tokenizer, AUDIO, BEGIN_AUDIO)) else None


def _ids(tokenizer: Tokenizer, *names: str) -> list[int]:
    """Return the ids of control tokens; none unless the tokenizer has all of them."""
    found = [tokenizer.control[name] for name in names if name in tokenizer.control]
    return found if len(found) == len(names) else []


def check_media(messages: Sequence[Mapping[str, Any]], roles: Mapping[str, Collection[str]]) -> None:
    """Raise ParameterError("messages") for an image or audio in a message whose role is none of its `roles`."""
    for index, message in enumerate(messages):
        for kind in [part["type"] for part in message.get(PARTS, ()) if part["type"] in MEDIA_ROLES]:
            if message["role"] not in roles.get(kind, ()):
                why = refused_media(kind, message["role"], roles)
                raise ParameterError("messages", f"messages[{index}] has {ONE[kind]}: {why}")


def refused_media(kind: str, role: str, roles: Mapping[str, Collection[str]]) -> str:
    """Return why a message of a role may not have media of this kind. `roles` are those whose messages may."""
    if not roles.get(kind):
        return f"this model takes no {MANY[kind]}"
    return f"this model's chat format cannot write {ONE[kind]} in a message of role {role}"
