"""Images in messages: who may have them, and the control tokens that stand for them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

from model.chat.reasoning import PARTS
from model.errors import ParameterError
from model.tokenizers.base import Tokenizer

IMAGE, ROW_BREAK, IMAGE_END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
"""The control tokens of Pixtral: one of a chat format's for each image, and those that end its rows."""
IMAGE_ROLES = ("user", "tool")
"""Roles whose messages have images in some chat formats."""
NO_IMAGES = "this model takes no images"


class ImageTokens(NamedTuple):
    """Ids of the control tokens that a model reads for an image."""

    image: int
    row_break: int
    end: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """None for a tokenizer without them."""
        ids = [tokenizer.control.get(name) for name in (IMAGE, ROW_BREAK, IMAGE_END)]
        found = [token for token in ids if token is not None]
        return cls(*found) if len(found) == len(ids) else None


def has_image(message: Mapping[str, Any]) -> bool:
    return any(part["type"] == "image" for part in message.get(PARTS, ()))


def check_images(messages: Sequence[Mapping[str, Any]], roles: Collection[str]) -> None:
    """Raise ParameterError("messages") for an image in a message whose role is none of `roles`."""
    for index, message in enumerate(messages):
        if has_image(message) and message["role"] not in roles:
            raise ParameterError("messages", f"messages[{index}] has an image: {refused_image(message['role'], roles)}")


def refused_image(role: str, roles: Collection[str]) -> str:
    """Why a message of a role may not have an image. `roles` are those whose messages may."""
    if not roles:
        return NO_IMAGES
    return f"this model's chat format cannot write an image in a message of role {role}"
