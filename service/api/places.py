"""The ids of a stream's events. Each seals a place in an answer, from which any server that computes the same goes on.

    REQUEST:HEAD.SENT.SEAL     REQUEST names the stream, HEAD holds its `Origin`, SENT counts events

SENT has the number of events that were sent of each choice, and last of those after the end of all choices: 17-20-0.
A token makes the same events wherever it is computed, so these numbers stand for numbers of tokens. Events of progress
do not count. SEAL is the HMAC of all before it, of the key's owner and of the route.
"""

import hmac
import time
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple, Self

import orjson

from service.access.record import LAST, RequestRecord
from service.errors.errors import InvalidRequest
from service.generation.request import ModelRequest, seeded
from service.generation.served import ServedModel
from service.http.sse import Framing
from service.receipts.receipt import digest, prompt_bytes, request_digest

SEAL_BYTES = 16
MAX_CHOICES = 128
"""An id has a number for each choice, and clients send it in a header."""


class Origin(NamedTuple):
    """All that an answer depends on beside its request, and what its events repeat.

    All ids in the events follow from `unique`. `request` is the hash of the request as it was made for the engine.
    """

    unique: str
    created: int
    seed: int = 0
    fingerprint: str = ""
    request: str = ""

    @classmethod
    def new(cls) -> Self:
        return cls(uuid.uuid4().hex, int(time.time()))


class Place(NamedTuple):
    """The place of an event. `stream` is the request that began the stream."""

    stream: str
    origin: Origin
    sent: tuple[int, ...]


class Sealer:
    """The seal on the ids of one owner's streams of one route. It has the key that replicas share."""

    def __init__(self, key: bytes, record: RequestRecord) -> None:
        self._key = key
        self._about = f"{record.owner}\n{record.route}\n".encode()

    def sealed(self, text: str) -> str:
        seal = hmac.digest(self._key, self._about + text.encode(), "sha256")[:SEAL_BYTES]
        return f"{text}.{urlsafe_b64encode(seal).rstrip(b'=').decode()}"

    def read(self, id: str) -> Place | None:
        """Return the place of an event; None for an id with another seal."""
        text, _, _ = id.rpartition(".")
        if not hmac.compare_digest(self.sealed(text).encode(), id.encode()):
            return None
        stream, _, place = text.partition(":")
        head, _, sent = place.partition(".")
        origin = Origin(*orjson.loads(urlsafe_b64decode(head + "=" * (-len(head) % 4))))
        return Place(stream, origin, tuple(map(int, sent.split("-"))))


class Places:
    """The places of the events of one stream: those before `place` are not sent again. None: it is a new stream."""

    def __init__(self, sealer: Sealer, stream: str, place: Place | None = None) -> None:
        self.origin = Origin.new() if place is None else place.origin
        self._sealer = sealer
        self._stream = stream
        self._place = place
        self._head = ""
        self._made: list[int] = []  # events of each choice, and those after all choices
        self._sent: list[int] = []

    def begin(self, made: ModelRequest, served: ServedModel, record: RequestRecord, *, exact: bool) -> ModelRequest:
        """Return the request with the answer's seed, and one delta a token. `exact`: the model promises equal bits.

        Raises InvalidRequest for the place of an answer that would be another one here.
        """
        if made.n_choices > MAX_CHOICES:
            message = f"a stream that resumes has at most {MAX_CHOICES} choices, got {made.n_choices}"
            raise InvalidRequest(message, param="n")
        if self._place is not None:
            self._check(served, exact=exact)
            made = seeded(made, self.origin.seed)
        request = _digest(made, record)
        if self._place is not None and request != self.origin.request:
            why = "the body is another one, or the server has other options"
            raise InvalidRequest(f"the header {LAST} belongs to another request: {why}", param=LAST)
        self.origin = self.origin._replace(seed=made.params.seed, fingerprint=served.fingerprint, request=request)
        self._head = urlsafe_b64encode(orjson.dumps([*self.origin])).rstrip(b"=").decode()
        self._made = [0] * (made.n_choices + 1)
        self._sent = [*(self._made if self._place is None else self._place.sent)]
        return replace(made, by_token=True)

    def _check(self, served: ServedModel, *, exact: bool) -> None:
        """Raise InvalidRequest if this server would compute another answer."""
        if self.origin.fingerprint != served.fingerprint:
            message = f"the stream is by {self.origin.fingerprint}, and the model here is {served.fingerprint}"
            raise InvalidRequest(message, param=LAST, code="other_fingerprint")
        if not exact:
            message = f"{served.fingerprint} promises no equal bits: only the server that began a stream continues it"
            raise InvalidRequest(message, param=LAST, code="not_deterministic")

    def sent(self, framing: Framing, frames: Sequence[tuple[int | None, bytes]], *, known: bool) -> list[bytes]:
        """Return the frames that the client does not have, with ids. Each comes with the index of its choice.

        The index after the last choice's is that of what follows them all; None: progress, which has no id. `known`:
        the client has all of them.
        """
        left = []
        for choice, frame in frames:
            if choice is None:
                left.append(frame)
                continue
            self._made[choice] += 1
            if self._made[choice] > self._sent[choice]:
                self._sent[choice] = self._made[choice]
                if not known:
                    left.append(framing.identified(frame, self._id().encode()))
        return left

    def _id(self) -> str:
        return self._sealer.sealed(f"{self._stream}:{self._head}.{'-'.join(map(str, self._sent))}")


def _digest(made: ModelRequest, record: RequestRecord) -> str:
    """Return the hash of a request: of its body, which decides the events, and of what the engine gets."""
    parts = [request_digest(made, digest(prompt_bytes(submit)), made.n, None) for submit in made.submits]
    return sha256("".join((record.body_digest, *parts)).encode()).hexdigest()[:16]
