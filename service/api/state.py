"""The state that all endpoints share, and the bound on the bodies that they read."""

from dataclasses import dataclass

from service.access.keys import Share
from service.api.lanes import Lanes
from service.api.run import Runs
from service.audio.audio import Audios
from service.errors.errors import Overloaded
from service.hosting.drain import Drain
from service.hosting.models import HostedModels
from service.images.images import Images
from service.observe.metrics import Metrics
from service.observe.view.live import LiveRequests
from service.recording.recorder import Recorder
from service.settings import Settings
from service.state.store import Store
from service.structured.constraint import Grammars

LARGE_BODIES = 16
"""The limit for bodies of the largest size that are in memory while they are read and parsed."""
RETRY_SECONDS = 1


class Bodies:
    """The bytes of large bodies and of large answers in memory, by sender. `max_bytes` is the limit of one body."""

    def __init__(self, max_bytes: int) -> None:
        self.held = Share()
        self._limit = LARGE_BODIES * max_bytes

    def add(self, sender: str, n_bytes: int, *, refuses: bool = True) -> None:
        """Count more bytes; a negative number counts what is gone.

        Raises Overloaded, but not for what is there already (`refuses` false).
        """
        if refuses and n_bytes > 0 and self.held.is_full(sender, self._limit, n_bytes):
            what = "bytes of large bodies are in memory"
            raise Overloaded(what, self.held.total, self._limit, RETRY_SECONDS, "--max-body")
        if n_bytes:
            self.held.add(sender, n_bytes)


@dataclass(frozen=True, slots=True)
class State:
    """The state that every endpoint can use, as `app.state.noria`.

    `work` has the threads that parse and tokenize requests. `resume_key` seals the ids of events.
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
    runs: Runs
    recorder: Recorder
    resume_key: bytes
