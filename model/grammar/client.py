"""The parent's side of the process that compiles and follows grammars: every wait ends, and every end has a reason.

A process that exceeds the limits of `model/grammar/process.py` ends by one of a few signals. The grammar it worked on
may be at fault then: whoever asks tries it again in a fresh process. No other end is a grammar's fault.
"""

import logging
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import RLock
from typing import Any, NamedTuple

from model.machine import frames
from model.machine.child import ending, is_stopped, start_python

log = logging.getLogger("noria.grammar")

ANSWER_SECONDS = 10.0
"""The longest wait for an answer. The limits of processor time are much shorter, but a machine may be busy."""
START_SECONDS = 20.0
"""The longest wait for a process that starts: it imports the compiler and reads the vocabulary."""
POLL_SECONDS = 0.1
EXIT_SECONDS = 1.0
"""The longest wait for the end of a process that has closed its socket, or was killed."""
ATTEMPTS = 2
"""Processes that may be lost with a grammar before its request ends."""
TIME_SIGNALS = (-signal.SIGPROF,)
MEMORY_SIGNALS = (-signal.SIGSEGV, -signal.SIGABRT)
"""Exit codes of a process at its limit of processor time, and at those of memory and stack."""
SAID_CHARS = 300


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
    """The first frame for a process: a `Vocabulary`, or an archive of a model's files and the width of the logits."""

    value: dict[str, Any]
    data: bytes = b""


class Link:
    """One socket to a process. `check` raises TimeoutError if it makes no sense to wait longer."""

    def __init__(self, sock: socket.socket, check: Callable[[], None]) -> None:
        self._sock = sock
        self._sock.settimeout(POLL_SECONDS)
        self._check = check
        self._buffer = bytearray()
        self._frames: deque[tuple[Any, bytes]] = deque()

    def send(self, value: Any, data: bytes = b"", seconds: float = ANSWER_SECONDS) -> None:
        """Write a frame. Raises OSError, also when that takes too long."""
        view, deadline = memoryview(frames.pack(value, data)), time.monotonic() + seconds
        while view:
            with self._patience(deadline):
                view = view[self._sock.send(view) :]

    def receive(self, seconds: float = ANSWER_SECONDS) -> tuple[Any, bytes]:
        """The next frame. Raises OSError, also when it does not come in time."""
        deadline = time.monotonic() + seconds
        while not self._frames:
            with self._patience(deadline):
                chunk = self._sock.recv(2**16)
                if not chunk:
                    raise ConnectionResetError("the socket was closed")
                self._buffer += chunk
            self._frames.extend(frames.received(self._buffer))
        return self._frames.popleft()

    def close(self) -> None:
        self._sock.close()

    @contextmanager
    def _patience(self, deadline: float) -> Iterator[None]:
        """Let a read or write wait for POLL_SECONDS, then look whether it may go on."""
        try:
            yield
        except TimeoutError:
            self._check()
            if time.monotonic() > deadline:
                raise TimeoutError("it does not answer") from None


class GrammarProcess:
    """A ready process. One thread may use `ask` while another follows sequences; any thread may call the others."""

    def __init__(self, first: First, *, follows: bool = False) -> None:
        """Start it and wait until it is ready. Raises CannotStart."""
        self._follows = follows
        self._compiling = False
        self._closed = False
        self._ending = RLock()
        self._limited = True  # until it says that the system allows it as much memory as its own limits do
        try:
            self._start(follows=follows)
        except OSError as error:
            log.warning("a process for grammars cannot be started: %s", error)
            raise CannotStart("it cannot be started") from error
        try:
            self._limited = self._exchange(first.value, first.data, START_SECONDS)["limited"]
        except ProcessLost as lost:
            raise CannotStart("it was lost while it started") from lost

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended, or is being ended."""
        if self._closed or self._process.poll() is None:
            return self._closed
        self._lost(ConnectionResetError("it ended"))
        return True

    def ask(self, grammar: str) -> str:
        """What is wrong with a grammar, "" if nothing. Raises ProcessLost."""
        self._compiling = True
        problem: str = self._exchange(grammar)
        self._compiling = False
        return problem

    def follow(self, step: list[Any]) -> None:
        """Request the masks of a step. Raises ProcessLost."""
        with self._watched():
            self._links[1].send(step)

    def masks(self) -> tuple[Any, bytes]:
        """The next answer to `follow`. Raises ProcessLost."""
        with self._watched():
            return self._links[1].receive()

    def kill(self) -> None:
        """End it at once, whatever it does. Does not wait; whoever waits for an answer gets ProcessLost."""
        self._process.kill()

    def end(self) -> None:
        """Kill it, wait until it has ended, and release what belongs to it. May be called again."""
        with self._ending:
            self._closed = True
            self.kill()
            self._wait()
            for link in self._links:
                link.close()
            if self._process.stderr is not None:
                self._process.stderr.close()

    def _start(self, *, follows: bool) -> None:
        with ExitStack() as ours, ExitStack() as theirs:
            pairs: list[tuple[socket.socket, socket.socket]] = []
            for _ in range(2 if follows else 1):
                pairs.append(socket.socketpair())
                ours.enter_context(pairs[-1][0])
                theirs.enter_context(pairs[-1][1])
            self._process = start_python(
                "model.grammar.process",
                sockets=[second for _, second in pairs],
                # a thread's arena takes 64 MiB at once, too much for the memory limit of a trial
                environment={} if follows else {"MALLOC_ARENA_MAX": "1"},
                stderr=subprocess.PIPE,
            )
            ours.pop_all()
        self._links = [Link(first, self._check) for first, _ in pairs]

    def _exchange(self, value: Any, data: bytes = b"", seconds: float = ANSWER_SECONDS) -> Any:
        with self._watched():
            self._links[0].send(value, data, seconds)
            return self._links[0].receive(seconds)[0]

    def _check(self) -> None:
        if is_stopped(self.pid):
            raise TimeoutError("a signal has stopped it")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: its frame has no JSON
            raise self._lost(error) from error

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
        # A grammar that is compiled meanwhile may be the cause: the sequences that are followed cannot be blamed.
        return ProcessLost(reason, by_limits=at_limits and not (self._follows and self._compiling))

    def _report(self, reason: str) -> None:
        said = self._said()
        does = "follows" if self._follows else "tries"
        log.warning("the process that %s grammars is lost: %s%s", does, reason, f"; it said: {said}" if said else "")

    def _wait(self) -> None:
        """Wait for its end, but not for ever: a process that the kernel holds is left to the next that starts."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)

    def _said(self) -> str:
        stream = self._process.stderr
        if stream is None or stream.closed:
            return ""
        os.set_blocking(stream.fileno(), False)
        lines = (stream.read() or b"").decode(errors="replace").splitlines()
        return lines[-1].strip()[:SAID_CHARS] if lines else ""
