"""System calls that fail at a chosen time, as SQLite tests its error branches: the first, the second, the third...

    for fault in every_fault("fork", errno.EAGAIN):
        ...             # one run; the Nth fork in it fails
        fault.happened  # False in the last run, which passes without a fault

Only this process's calls fail. "send" and "receive" are those of socket pairs that are made during the run. "open"
covers pipes too, and "open", "fork" and "socketpair" fail on all threads.
"""

import builtins
import errno
import io
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

FAULTS = (
    ("open", errno.EMFILE),
    ("socketpair", errno.EMFILE),
    ("socketpair", errno.ENOMEM),
    ("fork", errno.EAGAIN),
    ("fork", errno.ENOMEM),
    ("send", errno.EPIPE),
    ("send", errno.ENOMEM),
    ("receive", errno.ECONNRESET),
    ("receive", errno.ENOMEM),
)
"""Kinds of calls, and the errors with which the system refuses them."""
OPEN = open


class Fault:
    """The Nth call of a kind, which fails; with `lasting` those after it fail too. `happened`: the run came so far."""

    def __init__(self, kind: str, code: int, n: int, *, lasting: bool = False) -> None:
        self.kind = kind
        self.happened = False
        self._error = OSError(code, os.strerror(code))
        self._n = n
        self._lasting = lasting
        self._calls = count(1)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{self.kind} {self._n} fails: {self._error}"

    def check(self, kind: str) -> None:
        """Count a call; raise the error if it is this one."""
        if kind != self.kind:
            return
        with self._lock:
            number = next(self._calls)
        if number == self._n or (self._lasting and number > self._n):
            self.happened = True
            raise OSError(self._error.errno, self._error.strerror)

    def around(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, or its failure. A read counts when its bytes have come, which are lost then."""

        def checked(*args: Any, **options: Any) -> Any:
            is_open = kind == "open" and bool(args) and isinstance(args[0], int)  # only wraps a descriptor
            if kind != "receive" and not is_open:
                self.check(kind)
            result = call(*args, **options)
            if kind == "receive":
                self.check(kind)
            return result

        return checked


@contextmanager
def failing(kind: str, code: int, n: int = 1, *, lasting: bool = False) -> Iterator[Fault]:
    """Let the Nth call of a kind fail until the block ends; with `lasting` all calls after it too."""
    fault = Fault(kind, code, n, lasting=lasting)

    class Checked(socket.socket):
        """A socket whose calls may fail."""

    for name, call in (("send", "send"), ("send", "sendall"), ("receive", "recv"), ("receive", "recv_into")):
        setattr(Checked, call, fault.around(name, getattr(socket.socket, call)))
    real = socket.socketpair

    def socketpair(*args: Any, **options: Any) -> tuple[socket.socket, ...]:
        fault.check("socketpair")
        return tuple(Checked(sock.family, sock.type, sock.proto, sock.detach()) for sock in real(*args, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socketpair", socketpair)
        patch.setattr(subprocess, "_fork_exec", fault.around("fork", subprocess._fork_exec))  # type: ignore[attr-defined]
        patch.setattr(os, "pipe", fault.around("open", os.pipe))
        patch.setattr(io, "open", fault.around("open", io.open))
        patch.setattr(builtins, "open", fault.around("open", builtins.open))
        yield fault


def every_fault(kind: str, code: int) -> Iterator[Fault]:
    """A fault for each run: the first call fails, then the second, until a run passes without."""
    for n in count(1):
        with failing(kind, code, n) as fault:
            yield fault
        if not fault.happened:
            return


def descriptors() -> int:
    """Number of open descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def offspring(pid: int | None = None) -> list[int]:
    """Process ids of the children of this process, or another, whichever thread started them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError), OPEN(task / "children") as file:  # the thread may end
            found += map(int, file.read().split())
    return sorted(found)


def helpers(module: str) -> list[int]:
    """Process ids of the living children that run a module."""
    found = []
    for pid in offspring():
        with suppress(FileNotFoundError, ProcessLookupError), OPEN(f"/proc/{pid}/cmdline") as file:
            if module in file.read().split("\0"):
                found.append(pid)
    return found
