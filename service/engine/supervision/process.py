"""The engine process, as the service starts and ends it. Tests run an engine on a thread (`tests/fakes.py`)."""

import contextlib
import socket
import subprocess
from collections.abc import Callable
from typing import NamedTuple, Protocol

from model.machine import frames
from model.machine.child import ending, is_stopped, start_python

NETWORK = "model.loading"
"""The module that every runner of a model imports. It imports PyTorch, which takes longest of all."""
END_SECONDS = 10.0
"""Time for a killed process to end. A process that the system holds longer is left behind."""


class EngineHandle(Protocol):
    """One engine, from its start to its end."""

    def spawn(self) -> socket.socket:
        """Start the engine; returns the service's end of the wire. Raises OSError if the machine cannot start it."""
        ...

    def stopped(self) -> bool:
        """Return whether a signal has stopped the engine, where the system can tell."""
        ...

    def kill(self) -> None:
        """End the engine at once, whatever it is doing. Does not wait."""
        ...

    def wait(self) -> str:
        """Wait for the end of an engine that was killed; returns how it ended, for the log.

        Blocks, so never on the event loop, and not for ever: a process can be stuck in the system.
        """
        ...


class Launched(NamedTuple):
    """An engine process that imports, and the service's end of its wire."""

    process: "subprocess.Popen[bytes]"
    sock: socket.socket


def launch(module: str = "") -> Launched:
    """Start an engine process. It imports `module`, if one is named, and waits for the name of its runner.

    Raises OSError if the machine cannot start a process.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            return Launched(start_python("service.engine", module, sockets=[theirs]), ours)
        except BaseException:
            ours.close()
            raise


def try_to_launch() -> Launched | None:
    """Launch a process that imports the network; None if the machine cannot. Whoever needs it finds out why."""
    try:
        return launch(NETWORK)
    except OSError:
        return None


class EngineProcess:
    """A direct child process that dies with its parent. In it, `runner`, a "module:callable", loads the model.

    `log` are format and level of its log. `launch` starts the process.
    """

    def __init__(
        self,
        runner: str = f"{NETWORK}:create",
        log: tuple[str, str] = ("human", "info"),
        launch: Callable[[], Launched] = launch,
    ) -> None:
        self._runner = runner
        self._log = log
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def spawn(self) -> socket.socket:
        self._process, sock = self._launch()
        with contextlib.suppress(OSError):  # it has ended already, which its closed wire tells
            frames.send(sock, [self._runner, *self._log])
        return sock

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
