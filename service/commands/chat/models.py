"""The models of a chat's server: how far each is, and how the chat gets another one."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from http import HTTPStatus
from itertools import islice
from typing import Any

import httpx

from model.errors import OptionError, one_line
from service.commands.chat.conversation import ChatSession, Event, clean
from service.commands.endpoint import list_models, read_card, refusal
from service.commands.pulse import showing, stage

Card = Mapping[str, Any]

UNREADY = ("unloaded", "loading", "draining", "failed")
"""The states of a model that answers only once it is loaded. Other servers tell no state: their models are ready."""


def described(client: httpx.Client, current: str) -> str:
    """Return the models of the server, a line each, with a mark before the current one. Raises OptionError."""
    cards = list_models(client)
    width = max(len(name) for name in cards)
    lines = (f"{'*' if name == current else ' '} {name:{width}}  {_state(card)}" for name, card in cards.items())
    return "\n".join(line.rstrip() for line in lines)


def _state(card: Card) -> str:
    state = card.get("state", "")
    if state == "loading":
        return f"{state}: {_stage(card)[1]}"
    return f"{state}: {card['reason']}" if state == "failed" and "reason" in card else str(state)


def _stage(card: Card) -> tuple[float, str]:
    """Return the part that is loaded, 0..1, and its stage."""
    done = card.get("progress", 0.0)
    return done, stage(card["stage"], done) if "stage" in card else ""


def switch(conversation: ChatSession, name: str) -> None:
    """Let the model `name` answer from now on, once it is loaded. Raises OptionError for one that cannot be."""
    cards = list_models(conversation.client)
    if name not in cards:
        raise OptionError(f"no model {name}; the server has {', '.join(cards)}")
    if cards[name].get("state") in UNREADY:
        _load(conversation.client, name)
    conversation.model = name


def _load(client: httpx.Client, name: str) -> None:
    """Wait until a model is loaded, and show how far it is. If the key may not load it, the next message loads it."""
    try:
        with _progress(client, name):
            response = client.post("/v1/models/load", json={"model": name})
    except httpx.RequestError as error:
        raise OptionError(f"the connection broke: {one_line(error)}") from error
    if not response.is_success and response.status_code != HTTPStatus.FORBIDDEN:
        raise OptionError(refusal(response))


def with_load(conversation: ChatSession, events: Iterator[Event]) -> Iterator[Event]:
    """Yield the events of an answer. If its model is not loaded, show until the first one how far it is."""
    client, name = conversation.client, conversation.model
    if conversation.shows_progress and _card(client, name).get("state") in UNREADY:
        with _progress(client, name):
            first = [*islice(events, 1)]
        yield from first
    yield from events


def _progress(client: httpx.Client, name: str) -> AbstractContextManager[None]:
    """Show inside the context how far a model is."""
    return showing(clean(f"loading {name}..."), lambda: _stage(_card(client, name)))


def _card(client: httpx.Client, name: str) -> Card:
    """Return the card of a model; an empty one if it cannot be read."""
    try:
        card: Card = read_card(client, name)
        return card
    except (httpx.HTTPError, ValueError):
        return {}
