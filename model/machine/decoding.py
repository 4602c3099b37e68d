"""A process that decodes files of clients: the parent's `DecodingProcess`, and the child's `serve`.

If a file hangs or crashes the process, nothing else is harmed. The socket carries frames (`model/machine/frames.py`).
The first frame has the largest size of what a file decodes to, and whether a file gets the longer limit of time. The
answer says whether the system allows less memory than the limit here. Each further frame is a file, and the format that
the model takes; the answer is what is wrong with the file, or what it decodes to.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from model.errors import MediaError
from model.machine.frames import receive, send
from model.machine.helper import ONE_ARENA, First, HelperProcess
from model.machine.host import return_free_memory
from model.machine.limits import Timer, limit_memory, run

ENVIRONMENT = {**ONE_ARENA, "OPENBLAS_NUM_THREADS": "1"}
"""The engine needs the other cores."""
FILE_BYTES = 64 * 2**20
"""The part of the limit of memory for each file, whatever it decodes to."""
STACK_BYTES = 8 * 2**20

Fields = dict[str, Any]
OnSize = Callable[[int], None]
"""It gets the number of units, pixels or samples, that a file decodes to, before they are decoded."""
Decode = Callable[[bytes, Fields, int, OnSize], tuple[Fields, bytes]]
"""From a file, the fields of a format and the largest size to an answer and its data. Raises MediaError."""


class TimeLimit(NamedTuple):
    """Processor time for a file: a part for the file and its header, and a part for each unit that it decodes to."""

    seconds: float
    unit_seconds: float


class ChildLimits(NamedTuple):
    """Limits of a child: of time, and of memory for each unit of the largest size."""

    short: TimeLimit
    long: TimeLimit
    unit_bytes: int

    def memory(self, max_size: int) -> int:
        """Return the limit of memory, in bytes, beyond what the process has before."""
        return FILE_BYTES + self.unit_bytes * max_size


class DecodingProcess(HelperProcess):
    """A ready process, which decodes "images" or "audio". One thread uses it; any thread may call `kill`.

    `max_size` is the limit for a file: of pixels, or of seconds for any model. A `patient` process gives it more time.
    """

    def __init__(self, kind: str, max_size: int, *, patient: bool = False) -> None:
        """Start it and wait until it is ready. Raises CannotStart."""
        first = First({"max_size": max_size, "patient": patient})
        super().__init__(f"model.{kind}.process", f"decodes {kind}", first, environment=ENVIRONMENT)

    def decode(self, data: bytes, format: Any) -> tuple[Fields, bytes]:
        """Return the answer to a file for a model's format, and its data. Raises MediaError, and ProcessLost."""
        answer, decoded = self.exchange(asdict(format), data)
        if "problem" in answer:
            raise MediaError(answer["problem"])
        return answer, decoded


def run_decoder(name: str, limits: ChildLimits, decode: Decode) -> None:
    """Serve on the socket whose descriptor the command line names, until it closes. The process has this name."""
    run(partial(serve, limits=limits, decode=decode), STACK_BYTES, name)


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
