"""The parent's side of a child process that can be lost: every wait ends, and every end has a reason.

A process that exceeds its own limits (`model/machine/limits.py`) ends by one of a few signals. The input it worked on
may be at fault then: whoever asks tries it again in a fresh process. No other end is an input's fault.
"""

import _thread
import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from model.machine import frames
from model.machine.child import ending, is_stopped, processor_ticks, start_python

log = logging.getLogger("noria.helper")

ANSWER_SECONDS = 10.0
"""The longest wait for a process that uses no processor time. One that does has limits of its own."""
POLL_SECONDS = 0.1
EXIT_SECONDS = 1.0
"""The longest wait for the end of a process that has closed its socket, or was killed."""
ATTEMPTS = 2
"""Processes that may be lost with an input before its request ends."""
TIME_SIGNALS = (-signal.SIGPROF,)
MEMORY_SIGNALS = (-signal.SIGSEGV, -signal.SIGABRT)
"""Exit codes of a process at its limit of processor time, and at those of memory and stack."""
SAID_CHARS = 300
ONE_ARENA: Mapping[str, str] = MappingProxyType({"MALLOC_ARENA_MAX": "1"})
"""Environment of a process with a narrow limit of memory: the arena of a thread takes 64 MiB at once."""


class ProcessLost(Exception):
    """The process ended, is stopped or does not answer. It is killed, and the log says why.

    `by_limits`: it exceeded its own limits.
    """

    def __init__(self, message: str, *, by_limits: bool = False) -> None:
        super().__init__(message)
        self.by_limits = by_limits


class CannotStart(ProcessLost):
    """The process was lost before it was ready."""


class First(NamedTuple):
    """The first frame for a process: what it has to know before its first input. `data` makes its bytes."""

    value: dict[str, Any]
    data: Callable[[], bytes] = bytes


class Link:
    """One socket to a process. `ticks` is the processor time of the process; it raises TimeoutError for a stopped one.

    `send` and `receive` raise OSError, and TimeoutError when the process has done nothing for `seconds`.
    """

    def __init__(self, sock: socket.socket, ticks: Callable[[], int], seconds: float = ANSWER_SECONDS) -> None:
        self._sock = sock
        self._sock.settimeout(POLL_SECONDS)
        self._ticks = ticks
        self._seconds = seconds
        self._seen = 0
        self._deadline = 0.0
        self._buffer = bytearray()
        self._frames: deque[tuple[Any, bytes]] = deque()

    def send(self, value: Any, data: bytes = b"") -> None:
        """Write a frame."""
        self._extend()
        view = memoryview(frames.pack(value, data))
        while view:
            with self._patience():
                view = view[self._sock.send(view) :]

    def receive(self) -> tuple[Any, bytes]:
        """Receive the next frame."""
        self._extend()
        while not self._frames:
            with self._patience():
                chunk = self._sock.recv(2**16)
                if not chunk:
                    raise ConnectionResetError("the socket was closed")
                self._buffer += chunk
            self._frames.extend(frames.received(self._buffer))
        return self._frames.popleft()

    def closed_there(self) -> bool:
        """Return whether the process has closed its socket, as one that ends does first, or this one has its own.

        Reads nothing.
        """
        poll = select.poll()
        try:
            poll.register(self._sock, 0)
        except ValueError:  # it has no descriptor any more
            return True
        return bool(poll.poll(0))

    def close(self) -> None:
        self._sock.close()

    def _extend(self) -> None:
        self._deadline = time.monotonic() + self._seconds

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Let a read or write wait for POLL_SECONDS, then look whether it may go on."""
        try:
            yield
        except TimeoutError:
            before, self._seen = self._seen, self._ticks()
            if self._seen != before:
                self._extend()
            elif time.monotonic() > self._deadline:
                raise TimeoutError("it does nothing") from None


class HelperProcess:
    """A ready process, which runs `module` with `limits.run`. Any thread may call `kill`; one thread uses a link.

    `does` says for the log what the process does, as in "tries grammars". `links` has `n_links` links.
    """

    def __init__(
        self,
        module: str,
        does: str,
        first: First,
        *,
        n_links: int = 1,
        environment: Mapping[str, str] = MappingProxyType({}),
        own_session: bool = True,
    ) -> None:
        """Start it and wait until it is ready. Raises CannotStart.

        Without `own_session` it stays in the process group of an engine. The service waits for what is left of that.
        """
        self._does = does
        self._closed = False
        self._ending = threading.RLock()
        data = first.data()
        self._limited = True  # until it says that the system allows it as much memory as its own limits do
        try:
            self._start(module, n_links, environment=environment, start_new_session=own_session)
        except OSError as error:
            log.warning("the process that %s cannot be started: %s", does, error)
            raise CannotStart("it cannot be started") from error
        try:
            # This thread reads the exit code as soon as there is one: no zombie stays, whoever kills the process.
            # Private: `_thread` is documented. `Thread.start` could wait for ever where memory is short.
            _thread.start_new_thread(self._process.wait, ())
            self._limited = self.exchange(first.value, data)[0]["limited"]
        except (ProcessLost, RuntimeError) as error:  # RuntimeError: the system allows no more threads
            self.end()
            raise CannotStart("it was lost while it started") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Return whether it has ended, or is being ended."""
        if self._closed:
            return True
        # The thread that waits for the exit code may not have had its turn yet.
        if self._process.poll() is None and not self.links[0].closed_there():
            return False
        self._lost(ConnectionResetError("it ended"))
        return True

    def exchange(self, value: Any, data: bytes = b"") -> tuple[Any, bytes]:
        """Send a frame on the first link; return the answer. Raises ProcessLost."""
        with self.watched():
            self.links[0].send(value, data)
            return self.links[0].receive()

    def kill(self) -> None:
        """End it at once, whatever it does. Does not wait; whoever waits for an answer gets ProcessLost."""
        self._process.kill()

    def end(self) -> None:
        """Kill it, wait until it has ended, and release what belongs to it. May be called again."""
        with self._ending:
            self._closed = True
            self.kill()
            self._wait()
            for link in self.links:
                link.close()
            if self._process.stderr is not None:
                self._process.stderr.close()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raise ProcessLost for errors of a link in the block."""
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: its frame has no JSON
            raise self._lost(error) from error

    def may_blame(self) -> bool:
        """Return whether the input that the process worked on may be why it exceeded its limits."""
        return True

    def _start(self, module: str, n_links: int, **options: Any) -> None:
        with ExitStack() as ours, ExitStack() as theirs:
            pairs: list[tuple[socket.socket, socket.socket]] = []
            for _ in range(n_links):
                pairs.append(socket.socketpair())
                ours.enter_context(pairs[-1][0])
                theirs.enter_context(pairs[-1][1])
            sockets = [second for _, second in pairs]
            self._process = start_python(module, sockets=sockets, stderr=subprocess.PIPE, **options)
            ours.pop_all()
        self.links = [Link(first, self._ticks) for first, _ in pairs]

    def _ticks(self) -> int:
        if is_stopped(self.pid):
            raise TimeoutError("a signal has stopped it")
        return processor_ticks(self.pid)

    def _lost(self, error: Exception) -> ProcessLost:
        """End the process. The reason is how it ended by itself, or else the error for which it is killed."""
        with self._ending:
            if isinstance(error, ConnectionError):
                self._wait()
            code = self._process.poll()
            reason = str(error) if code is None else ending(code)
            if not self._closed:
                self._report(reason)
            self.end()
        at_limits = code in TIME_SIGNALS or (code in MEMORY_SIGNALS and not self._limited)
        return ProcessLost(reason, by_limits=at_limits and self.may_blame())

    def _report(self, reason: str) -> None:
        said = self._said()
        log.warning("the process that %s is lost: %s%s", self._does, reason, f"; it said: {said}" if said else "")

    def _wait(self) -> None:
        """Wait for its end, but not for ever: the kernel may hold it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)

    def _said(self) -> str:
        stream = self._process.stderr
        if stream is None or stream.closed:
            return ""
        os.set_blocking(stream.fileno(), False)
        lines = (stream.read() or b"").decode(errors="replace").splitlines()
        return lines[-1].strip()[:SAID_CHARS] if lines else ""
