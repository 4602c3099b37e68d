"""The stored events of a response that has ended: read, unpacked and sent in pieces, as the client takes them."""

import zlib
from collections.abc import AsyncIterator
from functools import partial

import orjson

from service.api.responses.background import END
from service.api.responses.shape import ErrorEvents
from service.api.stored.requested import Requested
from service.errors.errors import ApiError, InvalidRequest
from service.http.sse import ClientGone
from service.state.tables import EVENTS_PIECE, Tables


class StoredEvents:
    """The stream of the events after number `after`. A reader holds one compressed piece, and one that is unpacked."""

    def __init__(self, requested: Requested, after: int) -> None:
        self._requested = requested
        self._framing = ErrorEvents()
        self._inflater = zlib.decompressobj()
        self._skipped = after + 1  # events that are still to be left out
        self._rest = b""  # the beginning of an event
        self._inside = False  # whether the client has the beginning of an event without its end

    async def write(self) -> None:
        """Write them to the client. Raises InvalidRequest if none are stored."""
        if not (first := await self._piece(0)):
            raise _no_events((await self._requested.read()).value)
        call = self._requested.call
        call.open(self._framing)
        async for frames in self._frames(first):
            await call.sink.write(frames)

    async def _piece(self, at: int) -> bytes:
        owner, id, store = self._requested.owner, self._requested.id, self._requested.store
        if (piece := await store.run(Tables.events, owner, id, at)) is None:
            raise self._requested.missing  # deleted meanwhile
        return piece

    async def _frames(self, piece: bytes) -> AsyncIterator[list[bytes]]:
        at = 0
        try:
            while piece:
                at += len(piece)
                while piece:
                    text = await self._requested.call.state.work.run(partial(self._unpacked, piece), len(piece))
                    if text:
                        self._inside = not text.endswith(END)
                        yield [text]
                    piece = self._inflater.unconsumed_tail
                piece = await self._piece(at)
        except ApiError:
            if self._inside:  # a part of an event is sent: the error's event must not follow it
                raise ClientGone from None
            raise
        if not self._skipped:
            yield [self._rest + self._inflater.flush()]

    def _unpacked(self, piece: bytes) -> bytes:
        """Return the next events in a compressed piece, or a part of an event that is larger than `EVENTS_PIECE`."""
        text = self._rest + self._inflater.decompress(piece, EVENTS_PIECE)
        *skipped, rest = text.split(END, self._skipped)
        self._skipped -= len(skipped)
        if self._skipped:
            self._rest = rest[-1:]  # it may be the first byte of an end
            self._framing.n_sent += len(skipped)
            return b""
        cut = rest.rfind(END) + len(END) if END in rest else max(0, len(rest) - 1) * (len(rest) > EVENTS_PIECE)
        self._rest = rest[cut:]
        self._framing.n_sent += len(skipped) + rest[:cut].count(END)
        return rest[:cut]


def _no_events(response: bytes) -> InvalidRequest:
    """Return the refusal of the stream of a stored response without events."""
    if not orjson.loads(response)["background"]:
        why, code = "only a response with background true has stored events", "not_background"
    else:
        why, code = "it had too many events, or its end was not stored", "events_not_stored"
    return InvalidRequest(f"stream: no events of this response are stored: {why}", param="stream", code=code)
