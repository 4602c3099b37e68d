"""Where an engine lives: a process of its own. Tests have a host of their own (`tests/fakes.py`)."""

import signal
import socket
import subprocess
from pathlib import Path
from typing import Protocol

from model.machine.child import start_python


class Host(Protocol):
    """One engine life."""

    def spawn(self) -> socket.socket:
        """Start it; returns the service's end of the wire. Raises OSError when the machine has no room for it."""
        ...

    def stopped(self) -> bool:
        """Whether a signal has stopped it, where the system can tell."""
        ...

    def kill(self) -> None:
        """End it at once, whatever it is doing. Does not wait."""
        ...

    def wait(self) -> str:
        """Wait until it has ended, and say how, for the log. Blocks: not for the event loop."""
        ...


class ProcessHost:
    """The engine as a direct child process that dies with its parent.

    `runner` is the "module:callable" that loads the model there.
    """

    def __init__(self, runner: str = "model.loading:create") -> None:
        self._runner = runner
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = start_python("service.engine", self._runner, sockets=[theirs])
            except OSError:
                ours.close()
                raise
        return ours

    def stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def wait(self) -> str:
        if self._process is None:
            return "never started"
        code = self._process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
