"""`truncation: "auto"`: the last messages of a conversation that is too long for the context."""

from dataclasses import replace

from service.api.media import Media
from service.api.prompt import Chat, chat_request
from service.errors.errors import ContextExceeded
from service.generation.request import ModelRequest
from service.generation.served import ServedModel


def fitted(chat: Chat, served: ServedModel, media: Media, *, least: int = 1) -> ModelRequest:
    """Return the engine's request for as many of the last messages as fit the context, beside the first instructions.

    They begin with a message of the user. Raises ContextExceeded if the `least` last ones of the user, and what follows
    them, do not fit.
    """
    try:
        return chat_request(chat, served, media)
    except ContextExceeded:
        users = [at for at, message in enumerate(chat.messages) if message["role"] == "user"]
        starts = users[1 : len(users) + 1 - least]
        found, low, high = None, 0, len(starts) - 1
        while low <= high:  # fewer messages are always a shorter prompt
            middle = (low + high) // 2
            try:
                cut, left = _from(chat, starts[middle], media)
                found = chat_request(cut, served, left)
                high = middle - 1
            except ContextExceeded:
                low = middle + 1
        if found is None:
            raise
        return found


def _from(chat: Chat, first: int, media: Media) -> tuple[Chat, Media]:
    """Return the conversation from a message on, with the instructions before all others, and its images and audio."""
    n_system = next(at for at, message in enumerate(chat.messages) if message["role"] not in ("system", "developer"))
    cut = replace(chat, messages=[*chat.messages[:n_system], *chat.messages[first:]])
    n_items = len(media.items)
    return cut, media.only(range(n_items - len(cut.media), n_items))
