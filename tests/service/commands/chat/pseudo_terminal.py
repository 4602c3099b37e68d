"""A chat on a pseudo-terminal: the keys that a user types, and the screen that they see."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte

from tests.waiting import PATIENCE

COMMAND = [sys.executable, "-m", "service", "chat"]
ENTER, ALT_ENTER, CTRL_C, CTRL_D, UP = "\r", "\x1b\r", "\x03", "\x04", "\x1b[A"
LINES = 60
"""So many lines that nothing scrolls away."""


class Terminal:
    """A process on a pseudo-terminal. `screen` interprets what it writes."""

    def __init__(
        self, *arguments: str, columns: int = 80, state: Path | None = None, kind: str = "xterm-256color"
    ) -> None:
        self.screen = pyte.Screen(columns, LINES)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
        variables = {"TERM": kind, "XDG_STATE_HOME": str(state or "/proc/none")}
        variables["PROMPT_TOOLKIT_NO_CPR"] = "1"  # `screen` does not answer where its cursor is
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | variables,
        )
        os.close(theirs)
        self.written = b""

    @property
    def lines(self) -> list[str]:
        """The lines of the screen, without spaces at their ends and without the empty ones below the last."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip("\n").split("\n")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def paste(self, text: str) -> None:
        """What a terminal sends for a paste, once the program has asked for brackets around it."""
        self.until(lambda: self.written.rfind(b"\x1b[?2004h") > self.written.rfind(b"\x1b[?2004l"), "bracketed paste")
        self.type(f"\x1b[200~{text}\x1b[201~")

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Read what the process writes until `condition()` holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}; on the screen:\n{self.text}"
            if not select.select([self._ours], [], [], 0.05)[0]:
                continue
            try:
                data = os.read(self._ours, 65536)
            except OSError as error:  # the process has ended
                assert condition(), f"ended before: {what}; on the screen:\n{self.text}"
                raise EOFError from error
            self.written += data
            self._stream.feed(data)

    def shows(self, text: str) -> None:
        """Wait until `text` is on the screen."""
        self.until(lambda: text in self.text, repr(text))

    def prompts(self) -> None:
        """Wait until the last line is an empty prompt."""
        self.until(lambda: self.lines[-1] == ">", "a prompt")

    def says(self, *lines: str) -> None:
        """Wait until the lines above the prompt are these."""
        self.until(lambda: self.lines[-len(lines) - 1 :] == [*lines, ">"], "\n".join(lines))

    def send(self, text: str) -> None:
        """Type a line at the prompt, and Enter once it is on the screen."""
        self.prompts()
        self.type(text)
        self.shows(f"> {text}"[: self.screen.columns])
        self.type(ENTER)

    def end(self) -> int:
        """The exit code of the process, which ends by itself."""
        code = self.process.wait(PATIENCE)
        os.close(self._ours)
        return code


@contextmanager
def terminal(
    *arguments: str, columns: int = 80, state: Path | None = None, kind: str = "xterm-256color"
) -> Iterator[Terminal]:
    opened = Terminal(*arguments, columns=columns, state=state, kind=kind)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()
