"""Where an engine lives: a process of its own, or a thread for tests. Both speak the same wire."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Protocol

from service.engine.child import Child
from service.engine.wire import Wire

HOME = Path(__file__).parents[2]


class Host(Protocol):
    """One engine life. `spawn` returns the service's end of the wire; `kill` ends it whatever it is doing."""

    def spawn(self) -> socket.socket: ...

    def kill(self) -> str:
        """End the engine at once and say how it ended, for the log."""
        ...


class ProcessHost:
    """The engine as a direct child process that dies with its parent.

    `runner` is the "module:callable" that loads the model there. The child gets a session of its own, so that
    Ctrl-C in a terminal reaches the service alone, which then drains.
    """

    def __init__(self, runner: str = "model.runner:create") -> None:
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
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        return ours

    def kill(self) -> str:
        if self._process is None:
            return "never started"
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class ThreadHost:
    """The engine on a thread of this process: no start-up cost, no isolation. For tests."""

    def __init__(self, runner: str) -> None:
        self._runner = runner
        self._thread: threading.Thread | None = None
        self._wire: Wire | None = None

    def spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._wire = Wire(theirs)
        child = Child(self._wire, on_orphaned=lambda: None)
        self._thread = threading.Thread(target=child.run, args=[self._runner], name="noria-engine", daemon=True)
        self._thread.start()
        return ours

    def kill(self) -> str:
        """Close the wire; the loop ends at its next message. A thread in a step finishes that step first."""
        if self._wire is not None and self._thread is not None:
            self._wire.close()
            self._thread.join(timeout=5)
        return "thread ended"
