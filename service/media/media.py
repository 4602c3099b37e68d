"""Images or audio files of requests. A child process decodes them: a hostile file may kill it alone."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from model.errors import MediaError
from service.errors.errors import InvalidRequest
from service.helpers import HelperThread, LimitsExceeded, Process, Recent
from service.media.source import Source

P = TypeVar("P", bound=Process)
F = TypeVar("F")
D = TypeVar("D")

CACHE_BYTES = 64 * 2**20
"""Decoded bytes that are kept: a conversation sends its files again with each request."""
ENTRY_BYTES = 2**10
"""What each of them counts at least: the length of audio is kept, too."""
REQUESTS = 4
"""As many requests may have files decoded that the engine's queue does not count yet: what a file decodes to can be far
larger than a request's body."""
MAX_SUSPECTS = 1024
TOO_MUCH = "takes too much time or memory to decode"


@dataclass(frozen=True, slots=True)
class Kind(Generic[P, F, D]):
    """The difference between images and audio for `Media`.

    `noun` names a file, as in "image". `limited` names what `max_files` limits, as in "images (--max-images)". `start`
    makes a process, by whether it is patient. `decode` gives what a file decodes to in a format, and `size` its bytes.
    """

    noun: str
    limited: str
    max_files: int
    start: Callable[[bool], P]
    decode: Callable[[P, bytes, F], D]
    size: Callable[[D], int]


class Decoder(Generic[P, F, D]):
    """Decodes files in a child process, which starts at the first one. `on_restart` hears when one replaces another.

    A `patient` decoder gives a file more time, and starts a process for each.
    """

    def __init__(
        self, kind: Kind[P, F, D], on_restart: Callable[[], None] = lambda: None, *, patient: bool = False
    ) -> None:
        self.patient = patient
        self._kind = kind
        self._helper: HelperThread[P] = HelperThread(f"decodes {kind.noun}", f"{kind.noun}_unavailable", on_restart)

    async def decode(self, data: bytes, format: F) -> D:
        """What a file decodes to. Raises MediaError, LimitsExceeded, and Unavailable without a process."""
        return await self._helper.run(lambda: self._decoded(data, format))

    async def close(self) -> None:
        """End the process and the thread."""
        await self._helper.close()

    def _decoded(self, data: bytes, format: F) -> D:
        try:
            return self._helper.use(self._start, lambda process: self._kind.decode(process, data, format))
        finally:
            if self.patient:
                self._helper.end()

    def _start(self) -> P:
        return self._kind.start(self.patient)


class Suspected(Exception):
    """A file has to be decoded apart."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source


class Media(Generic[P, F, D]):
    """The files of one kind of all requests. It decodes one at a time, and keeps the last ones. One per server.

    A file that exceeds the short limit of time, or that of memory, is a suspect. A second process decodes suspects
    with the long limit, one at a time, while the first goes on with other files. `on_decoded` gets the seconds from a
    file's turn to its end.
    """

    def __init__(
        self,
        kind: Kind[P, F, D],
        on_restart: Callable[[], None] = lambda: None,
        on_decoded: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._kind = kind
        self._on_decoded = on_decoded
        self._recent: Recent[tuple[bytes, F], D] = Recent(CACHE_BYTES, lambda it: max(ENTRY_BYTES, kind.size(it)))
        self._suspects: Recent[tuple[bytes, F], bool] = Recent(MAX_SUSPECTS)  # if they exceeded the longer limit too
        self._turns = asyncio.Semaphore(REQUESTS)
        self._decoder, self._decoder_turn = Decoder(kind, on_restart), asyncio.Lock()
        self._patient, self._patient_turn = Decoder(kind, patient=True), asyncio.Lock()

    async def decode(self, sources: Sequence[Source], format: F, owner: str = "") -> list[D]:
        """What a request's files decode to, for the model. They are found again by requests of the same owner only.

        Raises InvalidRequest, naming the field, for a file that cannot be used; Unavailable without a process.
        """
        if len(sources) > (limit := self._kind.max_files):
            message = f"a request may have at most {limit} {self._kind.limited}, got {len(sources)}"
            raise InvalidRequest(message, param=sources[limit].param)
        sources = [source.owned_by(owner) for source in sources]
        known = [self._recent.find((source.digest, format)) for source in sources]
        if all(known):  # they wait for nobody
            found = [decoded for decoded in known if decoded is not None]
            self.check(sources, found, format)
            return found
        apart: dict[bytes, D] = {}
        while True:
            try:
                async with self._turns:
                    return await self._all(sources, format, apart)
            except Suspected as suspected:  # it waits without a turn: others' files go on
                source = suspected.source
            apart[source.digest] = await self._one_apart(source, format)

    def check(self, sources: Sequence[Source], found: Sequence[D], format: F) -> None:
        """Raise InvalidRequest if the first files of a request decode to too much together."""

    async def close(self) -> None:
        """End the processes and the threads."""
        await asyncio.gather(self._decoder.close(), self._patient.close())

    async def _all(self, sources: Sequence[Source], format: F, apart: dict[bytes, D]) -> list[D]:
        found: list[D] = []
        for source in sources:
            found.append(apart.get(source.digest) or await self._one(source, format))
            self.check(sources, found, format)
        return found

    async def _one(self, source: Source, format: F) -> D:
        """What a file decodes to. Raises InvalidRequest, Unavailable and Suspected."""
        key = (source.digest, format)
        async with self._decoder_turn:  # others' files come between those of a request
            if (found := self._recent.find(key)) is not None:
                return found
            if self._suspects.find(key) is not None:
                raise Suspected(source)
            try:
                return await self._decoded(self._decoder, source, format)
            except LimitsExceeded:
                self._suspects.note(key, False)
                raise Suspected(source) from None

    async def _one_apart(self, source: Source, format: F) -> D:
        """What a suspect decodes to. Raises InvalidRequest and Unavailable."""
        key = (source.digest, format)
        async with self._patient_turn:
            if (found := self._recent.find(key)) is not None:
                return found
            try:
                if not self._suspects.find(key):
                    return await self._decoded(self._patient, source, format)
            except LimitsExceeded:
                self._suspects.note(key, True)
            raise self._refusal(source, TOO_MUCH)

    async def _decoded(self, decoder: Decoder[P, F, D], source: Source, format: F) -> D:
        began = time.monotonic()
        try:
            decoded = await decoder.decode(source.data, format)
        except MediaError as error:
            raise self._refusal(source, str(error)) from None
        self._recent.note((source.digest, format), decoded)
        if self._kind.size(decoded):  # else it was measured only
            self._on_decoded(time.monotonic() - began)
        return decoded

    def _refusal(self, source: Source, problem: str) -> InvalidRequest:
        noun = self._kind.noun
        return InvalidRequest(f"the {noun} in {source.param} {problem}", param=source.param, code=f"invalid_{noun}")
