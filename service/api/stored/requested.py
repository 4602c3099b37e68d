"""The response or the conversation that a request names in its path."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import orjson
from starlette.responses import Response

from service.api.call import Call
from service.api.responses.body import LOGPROBS
from service.errors.errors import InvalidRequest, NotStored
from service.state.stored import PREFIXES, Owner, Stored
from service.state.tables import Tables


class Requested:
    """The stored response or conversation that a request names, as the owner of its key finds it.

    A request that creates one names none. Raises InvalidRequest without a store, NotStored for an id of the other kind.
    """

    def __init__(self, call: Call, kind: Literal["response", "conversation"]) -> None:
        self.call = call
        self.owner, self.store = Owner.of(call.record), call.state.store
        self.id: str = call.request.path_params.get("id", PREFIXES[kind])
        self.missing = NotStored(kind, self.id)
        if not self.store.enabled:
            raise InvalidRequest("the server stores nothing (--responses-store off)", code="store_off")
        if not self.id.startswith(PREFIXES[kind]):
            raise self.missing

    async def read(self, included: Sequence[str] = ()) -> Stored:
        """Read it, with log probabilities where `included` names them. Raises NotStored, also for another key's."""
        scored = LOGPROBS in included
        if (stored := await self.store.run(Tables.find, self.owner, self.id, scored=scored)) is None:
            raise self.missing
        return stored

    async def answer(self, write: Callable[[Stored], Mapping[str, Any]], included: Sequence[str] = ()) -> Response:
        """Answer with what `write` makes of the stored object. Raises NotStored.

        The store's thread reads and writes, one answer after the other: what waits holds nothing.
        """

        def content(tables: Tables) -> bytes | None:
            stored = tables.find(self.owner, self.id, scored=LOGPROBS in included)
            return None if stored is None else orjson.dumps(write(stored))

        if (found := await self.store.run(content)) is None:
            raise self.missing
        return self.call.respond(found)

    async def delete(self) -> None:
        """Delete it. Raises NotStored."""
        if not await self.store.run(Tables.delete, self.owner, self.id):
            raise self.missing
