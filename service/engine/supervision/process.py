"""The engine process, as the service starts and ends it. Tests run an engine on a thread (`tests/fakes.py`)."""

import asyncio
import contextlib
import socket
import subprocess
from concurrent.futures import Future

from model.machine import frames
from model.machine.child import ending, is_stopped
from model.machine.forking import ForkedProcess
from service.engine.supervision.zygote import Zygote
from service.engine.tape import STACK_SIGNAL, SharedTape

STACK_SECONDS = 0.1
END_SECONDS = 10.0
"""Time for a killed process to end. A process that the system holds longer is left behind."""


class EngineProcess:
    """A process that the zygote forks: a child of the service, with which it dies.

    In it, `runner`, a "module:callable", loads the model. `log` are format and level of its log. It writes its steps to
    `tape`, which outlives it.
    """

    def __init__(
        self, runner: str, zygote: Zygote, log: tuple[str, str] = ("human", "info"), tape: SharedTape | None = None
    ) -> None:
        self._runner = runner
        self._zygote = zygote
        self._log = log
        self._tape = tape
        self._process: Future[ForkedProcess] = Future()

    @property
    def pid(self) -> int | None:
        return self._process.result().pid if self.started else None

    @property
    def started(self) -> bool:
        """Return whether there is, or was, a process."""
        done = self._process.done() and not self._process.cancelled()
        return done and self._process.exception() is None

    def spawn(self) -> socket.socket:
        """Start the engine soon: the zygote may still import. A wire that closes says that there is no process."""
        ours, theirs = socket.socketpair()
        self._process = self._zygote.fork(theirs)
        with contextlib.suppress(OSError):  # it has ended already, which its closed wire tells
            frames.send(ours, [self._runner, *self._log, self._tape.path if self._tape else ""])
        return ours

    def stopped(self) -> bool:
        """Return whether a signal has stopped it, where the system can tell."""
        return self.pid is not None and is_stopped(self.pid)

    async def stacks(self) -> str:
        """Return the stacks that a running engine writes at a signal, or that a crash has written."""
        if self._tape is None:
            return ""
        if self.started and (process := self._process.result()).poll() is None:
            process.kill(STACK_SIGNAL)
            await asyncio.sleep(STACK_SECONDS)
        return self._tape.take_stacks()

    def kill(self) -> None:
        """Kill it, whatever it is doing. One that is not forked yet ends by itself, because its wire is closed."""
        if self.started:
            self._process.result().kill()

    def wait(self) -> str:
        """Wait for its end after `kill`; returns how it ended, for the log. Blocks, so never on the event loop."""
        if self._process.cancel() or self._process.cancelled():
            return "it was not started"
        try:
            process = self._process.result()
            how = ending(process.wait(END_SECONDS))
        except subprocess.TimeoutExpired:
            return "it does not end"
        except OSError as error:
            return f"it cannot be started: {error.strerror or error}"
        process.end_group(END_SECONDS)
        return how
