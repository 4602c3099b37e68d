"""Engines that start on one GPU at the same time load one after the other: each then sees what the others take.

The first one holds a lock until its memory is allocated, and its process id stays in the file of the lock. Engines of
other users, or in other containers, have other folders: they do not see each other.
"""

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from model.errors import OptionError

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 900.0
"""Time to wait for one other engine. Engines over several hosts could otherwise wait for each other without end."""
POLL_SECONDS = 0.1


def folder() -> Path:
    """The user's folder of locks, made if it is missing. Raises OSError."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime, "noria") if runtime else Path(tempfile.gettempdir(), f"noria-{os.getuid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    return path


@contextmanager
def alone_on(gpus: Sequence[str], waiting: Callable[[int], None]) -> Iterator[list[int]]:
    """Hold the locks of these GPUs, by their names; `waiting` is told which process has one.

    It gives the processes that loaded a model there before, and still run. All processes take the locks in the same
    order. Raises OptionError if another one does not let go.
    """
    with ExitStack() as stack:
        found = []
        for name in sorted(gpus):
            try:
                file = stack.enter_context((folder() / f"{name}.lock").open("a+"))
            except OSError as error:
                log.warning("engines that start at the same time do not wait for each other here: %s", error)
                continue
            _lock(file.fileno(), waiting)
            found += [pid for pid in (_holder(file.fileno()),) if pid and pid != os.getpid() and _runs(pid)]
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())
        yield found


def _lock(file: int, waiting: Callable[[int], None]) -> None:
    """Take the lock of an open file. It is free when its process closes the file, or ends."""
    until, told = time.monotonic() + PATIENCE_SECONDS, 0
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _holder(file)
        if time.monotonic() > until:
            raise OptionError(
                f"process {pid} has been loading a model on the same GPU for {PATIENCE_SECONDS:.0f} s; end it, or "
                "start this one later"
            )
        if pid != told:
            waiting(told := pid)
        time.sleep(POLL_SECONDS)


def _holder(file: int) -> int:
    """The process that has the lock, or had it last; 0 if none is known."""
    text = os.pread(file, 20, 0)
    return int(text) if text.isdigit() else 0


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
