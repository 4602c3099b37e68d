"""The engine process, as the service starts and ends it. Tests run an engine on a thread (`tests/fakes.py`)."""

import socket
import subprocess
from typing import Protocol

from model.machine.child import ending, is_stopped, start_python

END_SECONDS = 10.0
"""Time for a killed process to end. A process that the system holds longer is left behind."""


class EngineHandle(Protocol):
    """One engine, from its start to its end."""

    def spawn(self) -> socket.socket:
        """Start the engine; returns the service's end of the wire. Raises OSError if the machine cannot start it."""
        ...

    def stopped(self) -> bool:
        """Whether a signal has stopped the engine, where the system can tell."""
        ...

    def kill(self) -> None:
        """End the engine at once, whatever it is doing. Does not wait."""
        ...

    def wait(self) -> str:
        """Wait for the end of an engine that was killed; returns how it ended, for the log.

        Blocks, so never on the event loop, and not for ever: a process can be stuck in the system.
        """
        ...


class EngineProcess:
    """A direct child process that dies with its parent. In it, `runner`, a "module:callable", loads the model.

    `log` are format and level of its log.
    """

    def __init__(self, runner: str = "model.loading:create", log: tuple[str, str] = ("human", "info")) -> None:
        self._runner = runner
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = start_python("service.engine", self._runner, *self._log, sockets=[theirs])
            except BaseException:
                ours.close()
                raise
        return ours

    def stopped(self) -> bool:
        return self.pid is not None and is_stopped(self.pid)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def wait(self) -> str:
        if self._process is None:
            return "never started"
        try:
            return ending(self._process.wait(END_SECONDS))
        except subprocess.TimeoutExpired:
            return "it does not end"
