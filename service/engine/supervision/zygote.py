"""The zygote, as the service sees it: its one child that imports everything, and from which engines are forked."""

import errno
import logging
import os
import queue
import random
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from model.machine.child import LOADING_SILENCE_SECONDS, STOPPED_SECONDS, ending, start_python
from model.machine.forking import ForkedProcess, adopt_orphans
from service.engine.supervision.launch import ENGINE, PID_BYTES, Launched, launch

log = logging.getLogger("noria.engine")

WATCH_SECONDS = 1.0
"""Seconds between two looks at whether the zygote lives."""
LONGEST_SECONDS = 30.0
KILLED_SECONDS = 1.0
"""Time for a killed process to end."""


def backoff(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: none after the first, then each time twice as many.

    At most `LONGEST_SECONDS`. Up to half is left out at random, so that many servers do not start at one time.
    """
    longest = min(0.5 * (2 ** min(failures, 16) - 1), LONGEST_SECONDS)
    return longest and longest * random.uniform(0.5, 1.0)


class Zygote:
    """The zygote of a service. Another one follows when it ends, or when a signal stops it.

    Engines are children of this process, so they outlive it. One thread starts zygotes and has them fork. Where the
    system does not let this process adopt them, there is no zygote: it starts each engine anew.
    """

    def __init__(self, module: str = "", launched: Launched | None = None) -> None:
        """Take one that runs already, or start one soon. It imports `module`, if one is named."""
        self._adopts = adopt_orphans()
        self._module = module
        self._launched = launched
        self._failures = 0
        self.on_lost: Callable[[str], None] = lambda how: None  # on a thread
        self._requests: queue.SimpleQueue[tuple[socket.socket, Future[ForkedProcess]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="noria-zygote", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Return the process id of the present one, if there is one."""
        return None if (launched := self._launched) is None else launched.process.pid

    def fork(self, wire: socket.socket) -> "Future[ForkedProcess]":
        """Fork an engine at the other end of a wire. Any thread may call this. The future may raise OSError."""
        future: Future[ForkedProcess] = Future()
        self._requests.put((wire, future))
        return future

    def close(self) -> None:
        """End it. Its engines go on."""
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                request = self._requests.get(timeout=WATCH_SECONDS + backoff(self._failures))
            except queue.Empty:
                self._watch()
                continue
            if request is None:
                return self._end()
            self._answer(*request)

    def _watch(self) -> None:
        """Replace one that has ended, or that a signal has stopped."""
        before = self._launched
        if not self._adopts:
            return
        try:
            if self._living() is before:
                self._failures = 0
        except Exception as error:
            self._failures += 1
            log.warning("there is no zygote: %s", error)

    def _answer(self, wire: socket.socket, future: "Future[ForkedProcess]") -> None:
        with wire:
            try:
                process = ForkedProcess(self._fork(wire)) if self._adopts else self._start(wire)
            except Exception as error:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            else:
                if future.set_running_or_notify_cancel():
                    future.set_result(process)
                else:  # nobody needs it any more
                    process.kill()
                    process.wait(KILLED_SECONDS)

    def _fork(self, wire: socket.socket) -> int:
        """Return the process id of an engine of the present zygote, or of the next one if that is lost meanwhile."""
        for _ in range(2):
            launched = self._living()
            if (pid := _ask(launched, wire)) is not None:
                return pid
            if not select.select([launched.sock], [], [], 0)[0]:  # it is open: the zygote lives
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            _kill(launched.process)
        raise OSError(f"the zygote has ended ({ending(launched.process.poll() or 0)})")

    def _start(self, wire: socket.socket) -> ForkedProcess:
        """Start an engine anew, in a session of its own."""
        self._end()  # the zygote that runs already
        started = start_python("service.engine", ENGINE, self._module, sockets=[wire])
        return ForkedProcess(started.pid, started)

    def _living(self) -> Launched:
        """Return the present zygote if it lives, else a new one. Raises OSError if the machine cannot start it."""
        launched = self._launched
        if launched is not None and (launched.process.poll() is not None or _halted(launched.process.pid)):
            self._end()
            self._failures += 1
            how = ending(launched.process.poll() or 0)
            log.warning("the zygote is gone (%s); another one follows", how)
            self.on_lost(how)
        if self._launched is None:
            self._launched = launch(self._module)
        return self._launched

    def _end(self) -> None:
        launched, self._launched = self._launched, None
        if launched is not None:
            launched.sock.close()
            _kill(launched.process)


def _halted(pid: int) -> bool:
    """Return whether a signal has stopped a child. Opens no file: this is called each second."""
    return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


def _ask(launched: Launched, wire: socket.socket) -> int | None:
    """Let a zygote, which may still import, fork an engine with this end of its wire; returns the process id.

    None: there is no engine. The answer comes over a socket of its own, which closes if nobody is left to answer.
    Kills a zygote that a signal has stopped, or that does nothing for long.
    """
    process, sock = launched
    ours, theirs = socket.socketpair()
    deadline = time.monotonic() + LOADING_SILENCE_SECONDS
    with ours:
        with theirs, suppress(OSError):  # it has ended
            socket.send_fds(sock, [b"f"], [wire.fileno(), theirs.fileno()])
        while not select.select([ours], [], [], STOPPED_SECONDS)[0]:
            if process.poll() is None and (_halted(process.pid) or time.monotonic() > deadline):
                _kill(process)
        answer = ours.recv(PID_BYTES)
    return int.from_bytes(answer) if answer else None


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):  # the system may hold it
        process.wait(KILLED_SECONDS)
