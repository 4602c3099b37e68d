"""Where an engine lives: a process of its own. Tests have a host of their own (`tests/fakes.py`)."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Protocol

HOME = Path(__file__).parents[2]


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

    `runner` is the "module:callable" that loads the model there. The child gets a session of its own, so that
    Ctrl-C in a terminal reaches the service alone, which then drains.
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
            # -P: a folder or file named "model" where the user stands must not shadow ours.
            command = [sys.executable, "-P", "-m", "service.engine", str(theirs.fileno()), self._runner]
            path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": path},
                )
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
