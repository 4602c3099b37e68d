"""Processes that are forked, not started anew: they share the memory of all that their parent has imported. Linux only.

A fork copies one thread. Another thread might hold a lock at that moment, which nobody would ever release in the copy.
So whoever forks has one thread (`n_threads`).
"""

import ctypes
import os
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from model.machine.child import die_with

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.002


class ForkedProcess:
    """A child of this process that was forked, or `started` by `subprocess`. Any thread may call anything."""

    def __init__(self, pid: int, started: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid = pid
        self._started = started
        self._code: int | None = None
        self._lock = threading.Lock()  # nobody signals a process id that another thread has just given back

    def poll(self) -> int | None:
        """Return how it ended, as `subprocess.Popen.returncode`; None while it runs."""
        with self._lock:
            if self._code is None and self._started is not None:
                self._code = self._started.poll()
            elif self._code is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if pid else None
            return self._code

    def wait(self, timeout: float) -> int:
        """Wait for its end; returns how it ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_SECONDS)
        return code

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal, by default the one that ends it at once. Does not wait."""
        with self._lock:
            if self._code is None:
                os.kill(self.pid, number)

    def end_group(self, timeout: float) -> None:
        """End the processes that it has left behind in its group. This process has adopted them."""
        deadline = time.monotonic() + timeout
        with suppress(ChildProcessError, ProcessLookupError):  # none is left
            while time.monotonic() < deadline:
                if os.waitpid(-self.pid, os.WNOHANG)[0] == 0:
                    os.killpg(self.pid, signal.SIGKILL)
                    time.sleep(POLL_SECONDS)


def n_threads() -> int:
    """Return the number of threads of this process, those of libraries included."""
    return len(list(Path("/proc/self/task").iterdir()))


def adopt_orphans() -> bool:
    """Adopt each descendant whose parent ends, instead of the system's first process.

    Returns whether the system lets this process do so: qemu, which emulates other processors, does not.
    """
    return ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0


def fork(work: Callable[[], None]) -> ForkedProcess:
    """Fork a child that does this work and ends; it dies with this process, even while it is stopped.

    The thread that forks must outlive it. Raises OSError if the system allows no more processes.
    """
    parent = os.getpid()
    return ForkedProcess(_fork(lambda: _with_parent(parent, work)))


def fork_for_parent(work: Callable[[], None]) -> None:
    """Fork a child of this process's parent, which adopts orphans: it dies with that one, not with this process.

    A process between the two ends at once. If the system allows no more processes, there is no child.
    """
    parent = os.getppid()

    def between() -> None:
        own = os.getpid()
        _fork(lambda: _with_parent(parent, work, orphan_of=own))

    with suppress(OSError):
        os.waitpid(_fork(between), 0)


def _with_parent(parent: int, work: Callable[[], None], orphan_of: int | None = None) -> None:
    while os.getppid() == orphan_of:
        time.sleep(POLL_SECONDS / 10)
    die_with(parent)
    work()


def _fork(work: Callable[[], None]) -> int:
    return os.fork() or _run(work)


def _run(work: Callable[[], None]) -> NoReturn:
    """Do the work of a child. It never returns into what its parent was doing, and runs no exit handler of it."""
    try:
        work()
    except OSError as error:
        os._exit(error.errno or 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
