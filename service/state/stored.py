"""Responses and conversations as the store holds them, and their owners."""

import uuid
from dataclasses import dataclass

from service.access.record import RequestRecord

ROW_BYTES = 256
"""About what a row needs beside its texts: many small rows count, too."""

PREFIXES = {"response": "resp_", "conversation": "conv_"}
"""The beginnings of ids of each kind."""


def new_id(prefix: str) -> str:
    """Return an id that nobody guesses, for a response, an item or a conversation."""
    return f"{prefix}_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One item of a conversation, as JSON without log probabilities. `output`: a model has written it.

    `scored` is the same with them, where there are any.
    """

    id: str
    value: bytes
    output: bool = False
    scored: bytes = b""

    @property
    def size(self) -> int:
        return ROW_BYTES + len(self.id) + len(self.value) + len(self.scored)


@dataclass(frozen=True, slots=True)
class Stored:
    """A response or a conversation. `value` is its JSON without its items.

    `previous` is the response that it continues. `running`: the server still computes it, and does not evict it.
    `events` are those of its stream, compressed; empty without any, and as `Tables` finds it.
    """

    id: str
    value: bytes
    items: tuple[StoredItem, ...] = ()
    previous: str | None = None
    running: bool = False
    events: bytes = b""

    @property
    def size(self) -> int:
        return ROW_BYTES + len(self.value) + len(self.events) + sum(item.size for item in self.items)


@dataclass(frozen=True, slots=True)
class Owner:
    """The identity of an API key, and its limits (None: those of the store). Without keys all clients are one owner."""

    name: str
    max_bytes: int | None = None
    max_stored: int | None = None

    @classmethod
    def of(cls, record: RequestRecord) -> "Owner":
        """Return the owner of the responses that a request stores."""
        if record.key is None:
            return cls(record.owner)
        return cls(record.owner, record.key.entry.stored_bytes, record.key.entry.stored_responses)


@dataclass(frozen=True, slots=True)
class Use:
    """The part of the store that an owner uses, or all owners together."""

    n_bytes: int = 0
    n_stored: int = 0

    def plus(self, n_bytes: int, n_stored: int) -> "Use":
        return Use(self.n_bytes + n_bytes, self.n_stored + n_stored)

    def within(self, owner: Owner) -> bool:
        """Return whether the owner's limits allow this."""
        return (owner.max_bytes is None or self.n_bytes <= owner.max_bytes) and (
            owner.max_stored is None or self.n_stored <= owner.max_stored
        )
