"""The response or the conversation that a request names in its path."""

from typing import Literal

from fastapi import Request

from service.access.record import RequestRecord
from service.api.state import State
from service.errors.errors import InvalidRequest, NotStored
from service.state.stored import PREFIXES, Owner, Stored
from service.state.tables import Tables


class Requested:
    """What a request names, as the owner of its key finds it; nothing for one that creates.

    Raises InvalidRequest without a store, NotStored for an id of the other kind.
    """

    def __init__(self, request: Request, kind: Literal["response", "conversation"]) -> None:
        self.state: State = request.app.state.noria
        self.record: RequestRecord = request.scope["noria.record"]
        self.owner, self.store = Owner.of(self.record), self.state.store
        self.id: str = request.path_params.get("id", PREFIXES[kind])
        self.missing = NotStored(kind, self.id)
        if not self.store.enabled:
            raise InvalidRequest("the server stores nothing (--responses-store off)", code="store_off")
        if not self.id.startswith(PREFIXES[kind]):
            raise self.missing

    async def read(self) -> Stored:
        """Raises NotStored, also for another key's."""
        if (stored := await self.store.run(Tables.find, self.owner, self.id)) is None:
            raise self.missing
        return stored

    async def delete(self) -> None:
        """Raises NotStored."""
        if not await self.store.run(Tables.delete, self.owner, self.id):
            raise self.missing
