"""Images or audio files of requests. A child process decodes them: a hostile file may kill it alone."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

from model.errors import MediaError
from model.machine.decoding import DecodingProcess, Fields
from service.errors.errors import InvalidRequest
from service.helpers import LimitsExceeded, Recent, Trial
from service.media.source import Source


class HasInputs(Protocol):
    """A decoded file. `inputs` are the bytes that the encoder reads."""

    @property
    def inputs(self) -> bytes: ...


F = TypeVar("F")
D = TypeVar("D", bound=HasInputs)

CACHE_BYTES = 64 * 2**20
"""Decoded bytes that stay in memory: a conversation sends its files again with each request."""
ENTRY_BYTES = 2**10
"""The least that a file counts: the length of audio stays, too."""
REQUESTS = 4
"""The limit for requests with decoded files that the engine's queue does not count yet: a decoded file can be far
larger than the body of its request."""
TOO_MUCH = "takes too much time or memory to decode"


class Media(Generic[F, D]):
    """The files of one kind of all requests. It decodes one at a time, and remembers the last ones. One per server.

    `kind` is the kind of its processes, `noun` names a file, as in "image". `limited` names what `max_files` limits, as
    in "images (--max-images)". `max_size` is the limit for a file. A file that exceeds the short limit of time, or that
    of memory, is decoded apart with the long limit. `on_decoded` gets the seconds of a file.
    """

    kind: ClassVar[str]
    noun: ClassVar[str]
    limited: ClassVar[str]

    def __init__(
        self,
        max_files: int,
        max_size: int,
        on_restart: Callable[[], None] = lambda: None,
        on_decoded: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._max_files = max_files
        self._max_size = max_size
        self._on_decoded = on_decoded
        recent: Recent[tuple[bytes, F], D] = Recent(CACHE_BYTES, lambda it: max(ENTRY_BYTES, len(it.inputs)))
        task, code = f"decodes {self.noun}", f"{self.noun}_unavailable"
        self._trial: Trial[DecodingProcess, tuple[bytes, F], D] = Trial(task, code, recent, on_restart)
        self._turns = asyncio.Semaphore(REQUESTS)

    @abstractmethod
    def made(self, answer: Fields, inputs: bytes) -> D:
        """Make a decoded file of what the process says of it, and of the bytes for the encoder."""

    async def decode(self, sources: Sequence[Source], format: F, owner: str = "") -> list[D]:
        """Decode a request's files for the model. Only requests of the same owner find them again.

        Raises InvalidRequest, naming the field, for a file that cannot be used; Unavailable without a process.
        """
        if len(sources) > (limit := self._max_files):
            message = f"a request may have at most {limit} {self.limited}, got {len(sources)}"
            raise InvalidRequest(message, param=sources[limit].param)
        sources = [source.owned_by(owner) for source in sources]
        known = [self._trial.recent.find((source.digest, format)) for source in sources]
        if all(known):  # they wait for nobody
            found = [decoded for decoded in known if decoded is not None]
            self.check(sources, found, format)
            return found
        apart: dict[bytes, D] = {}
        while True:
            found = []
            try:
                async with self._turns:
                    for source in sources:
                        found.append(apart.get(source.digest) or await self._one(source, format))
                        self.check(sources, found, format)
                    return found
            except LimitsExceeded:  # it waits without a turn: others' files go on
                suspect = sources[len(found)]
            try:
                apart[suspect.digest] = await self._one(suspect, format, apart=True)
            except LimitsExceeded:
                raise self._refusal(suspect, TOO_MUCH) from None

    def check(self, sources: Sequence[Source], found: Sequence[D], format: F) -> None:
        """Raise InvalidRequest if the first files of a request decode to too much together."""

    async def close(self) -> None:
        """End the processes and the threads."""
        await self._trial.close()

    async def _one(self, source: Source, format: F, *, apart: bool = False) -> D:
        """Return the decoded file. Raises InvalidRequest, Unavailable and LimitsExceeded."""
        start = partial(DecodingProcess, self.kind, self._max_size, patient=apart)
        try:
            decoded, seconds = await self._trial.ask(
                (source.digest, format),
                start,
                lambda process: self.made(*process.decode(source.data, format)),
                apart=apart,
            )
        except MediaError as error:
            raise self._refusal(source, str(error)) from None
        if seconds and decoded.inputs:  # else it was known, or measured only
            self._on_decoded(seconds)
        return decoded

    def _refusal(self, source: Source, problem: str) -> InvalidRequest:
        message = f"the {self.noun} in {source.param} {problem}"
        return InvalidRequest(message, param=source.param, code=f"invalid_{self.noun}")
