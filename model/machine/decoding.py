"""A process that decodes files of clients: the parent's `DecodingProcess`, and the child's `serve`.

If a file hangs or crashes the process, nothing else is harmed. The socket carries frames (`model/machine/frames.py`).
The first frame has the largest size of what a file decodes to, and whether a file gets the longer limit of time. The
answer says whether the system allows less memory than the limit here. Each further frame is a file, and the format that
the model takes; the answer is what is wrong with the file, or what it decodes to.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from model.errors import MediaError
from model.machine.frames import receive, send
from model.machine.helper import First, HelperProcess
from model.machine.host import return_free_memory
from model.machine.limits import Timer, limit_memory

Fields = dict[str, Any]
OnSize = Callable[[int], None]
"""It gets the number of units, pixels or samples, that a file decodes to, before they are decoded."""
Decode = Callable[[bytes, Fields, int, OnSize], tuple[Fields, bytes]]
"""From a file, the fields of a format and the largest size to an answer and its data. Raises MediaError."""


class TimeLimit(NamedTuple):
    """Processor time for a file: a part for the file and its header, and a part for each unit that it decodes to."""

    seconds: float
    unit_seconds: float


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Limits of a child. `memory` gives the bytes beyond what the process has before, for the largest size."""

    short: TimeLimit
    long: TimeLimit
    memory: Callable[[int], int]


class DecodingProcess(HelperProcess):
    """A ready process, which runs `module` with `serve`. One thread uses it; any thread may call `kill`.

    `max_size` is the first frame's. A `patient` process gives a file more time. `error` is what a bad file raises.
    """

    def __init__(
        self,
        module: str,
        does: str,
        error: type[MediaError],
        max_size: int,
        *,
        patient: bool,
        environment: Mapping[str, str],
    ) -> None:
        """Start it and wait until it is ready. Raises CannotStart."""
        super().__init__(module, does, First({"max_size": max_size, "patient": patient}), environment=environment)
        self._error = error

    def decoded(self, data: bytes, format: Fields) -> tuple[Fields, bytes]:
        """Return the answer to a file, and its data. Raises `error`, and ProcessLost."""
        answer, decoded = self.exchange(format, data)
        if "problem" in answer:
            raise self._error(answer["problem"])
        return answer, decoded


def serve(sock: socket.socket, limits: ChildLimits, decode: Decode) -> None:
    """Answer frames until the socket closes."""
    timer = Timer()
    first, _ = receive(sock)
    max_size, limit = first["max_size"], limits.long if first["patient"] else limits.short
    send(sock, {"limited": not limit_memory(limits.memory(max_size))})
    with contextlib.suppress(ConnectionError):
        while True:
            format, data = receive(sock)
            with limited(timer, limit) as on_size:
                answer, decoded = _answer(decode, data, format, max_size, on_size)
            send(sock, answer, decoded)
            del data, decoded
            return_free_memory()  # a large file would leave hundreds of MiB with this process


@contextlib.contextmanager
def limited(timer: Timer, limit: TimeLimit) -> Iterator[OnSize]:
    """Limit the block's processor time. The function adds the time for the units of a file, once they are known."""
    with contextlib.ExitStack() as tasks:
        tasks.enter_context(timer.task(limit.seconds))
        yield lambda n_units: tasks.enter_context(timer.task(limit.unit_seconds * n_units))


def _answer(decode: Decode, data: bytes, format: Fields, max_size: int, on_size: OnSize) -> tuple[Fields, bytes]:
    try:
        return decode(data, format, max_size, on_size)
    except MediaError as error:
        return {"problem": str(error)}, b""
