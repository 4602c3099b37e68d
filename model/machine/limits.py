"""The child's side of a process that can be lost: its limits of processor time and memory, and its end."""

import contextlib
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from model.machine.child import die_with_parent, name_process


class Timer:
    """A limit of processor time, the sum of those of the running tasks. The process ends when it is exceeded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    @contextlib.contextmanager
    def task(self, seconds: float) -> Iterator[None]:
        self._add(seconds)
        try:
            yield
        finally:
            self._add(-seconds)

    def _add(self, seconds: float) -> None:
        with self._lock:
            self._seconds = max(0.0, self._seconds + seconds)
            signal.setitimer(signal.ITIMER_PROF, self._seconds if self._seconds > 1e-6 else 0.0)  # SIGPROF ends it


def limit_memory(n_bytes: int) -> bool:
    """Let allocations fail beyond `n_bytes` more than now, or earlier where the system's own limit is lower.

    Returns whether all of `n_bytes` are allowed. Nothing is limited where the system does not tell how much is used.
    """
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return True
    limit = int(statm.read_text().split()[0]) * resource.getpagesize() + n_bytes
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    allowed = hard == resource.RLIM_INFINITY or limit <= hard
    resource.setrlimit(resource.RLIMIT_AS, (limit if allowed else hard, hard))
    return allowed


def run(main: Callable[..., None], stack_bytes: int, name: str) -> None:
    """Call `main` with the sockets that the command line names, on a thread with a stack of `stack_bytes`.

    The process has this `name`, and ends with its parent. It ends itself at an error, which its parent reads on stderr.
    """
    die_with_parent()
    name_process(name)
    os.set_blocking(sys.stderr.fileno(), False)  # the parent reads it only at the end
    threading.excepthook = _end
    sockets = [socket.socket(fileno=int(number)) for number in sys.argv[1:]]
    threading.stack_size(stack_bytes)
    thread = threading.Thread(target=main, args=sockets)
    thread.start()
    thread.join()


def _end(error: threading.ExceptHookArgs) -> None:
    """End the process with the error of a thread; as at other limits of memory, if that is the error."""
    try:
        threading.__excepthook__(error)
    finally:
        if issubclass(error.exc_type, MemoryError):
            os.abort()
        os._exit(1)
