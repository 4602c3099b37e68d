"""The state that all endpoints share, and the bound on the bodies that they read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from fastapi import Request

from service.access.keys import Share
from service.access.record import RequestRecord
from service.api.lanes import Lanes
from service.api.ongoing import OngoingWork
from service.audio.audio import Audios
from service.errors.errors import Overloaded
from service.hosting.drain import Drain
from service.hosting.hosted import HostedModel
from service.hosting.models import HostedModels
from service.images.images import Images
from service.observe.metrics import Metrics
from service.observe.view.requests import LiveRequests
from service.settings import Settings
from service.state.store import Store
from service.structured.constraint import Grammars

LARGE_BODIES = 16
"""As many of the largest bodies may be in memory while they are read and parsed."""
RETRY_SECONDS = 1


class Take(Protocol):
    """What `Bodies.holding` gives."""

    def __call__(self, n_bytes: int, *, refuses: bool = True) -> None: ...


class Bodies:
    """The bytes of large bodies in memory, by sender. `max_bytes` is the limit of one body."""

    def __init__(self, max_bytes: int) -> None:
        self.held = Share()
        self._limit = LARGE_BODIES * max_bytes

    @contextmanager
    def holding(self, sender: str) -> Iterator[Take]:
        """Count what a large body, or a large answer, holds inside the context.

        The function counts more bytes. It raises Overloaded, but not for what is there already (`refuses` false).
        """
        held = 0

        def take(n_bytes: int, *, refuses: bool = True) -> None:
            nonlocal held
            if refuses and n_bytes and self.held.is_full(sender, self._limit, n_bytes):
                what = "bytes of large bodies are in memory"
                raise Overloaded(what, self.held.total, self._limit, RETRY_SECONDS, "--max-body")
            held += n_bytes
            self.held.add(sender, n_bytes)

        try:
            yield take
        finally:
            self.held.add(sender, -held)


def hosted(request: Request, name: str | None) -> HostedModel:
    """The model that a request names, with None the first that its key may use. Raises ModelNotFound."""
    record: RequestRecord = request.scope["noria.record"]
    state: State = request.app.state.noria
    return state.models.find(name, record.key)


@dataclass(frozen=True, slots=True)
class State:
    """The state that every endpoint can use, as `app.state.noria`.

    `work` has the threads that parse and tokenize requests.
    """

    settings: Settings
    models: HostedModels
    drain: Drain
    work: Lanes
    bodies: Bodies
    metrics: Metrics
    grammars: Grammars
    images: Images
    audio: Audios
    requests: LiveRequests
    store: Store
    ongoing: OngoingWork
