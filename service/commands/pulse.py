"""The progress of a long command: a bar on a terminal, elsewhere a line every ten seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from model.errors import duration

SECONDS = 10.0
"""Between two lines."""
REFRESH_SECONDS = 0.25
"""Between two pictures of the bar."""

Report = Callable[[], tuple[float, str]]
"""The part that is done, 0..1, and a text about it."""


@contextmanager
def showing(title: str, report: Report, *, seconds: float = SECONDS) -> Iterator[None]:
    """Show what `report` returns on stderr until the block ends. A thread calls it."""
    console = Console(stderr=True)
    ended = threading.Event()
    work = _draw if console.is_terminal else _print
    thread = threading.Thread(target=work, args=(title, report, ended, console, seconds), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _draw(title: str, report: Report, ended: threading.Event, console: Console, seconds: float) -> None:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0, text="")
        while not ended.wait(REFRESH_SECONDS):
            done, text = report()
            bar.update(task, completed=done, text=text)


def _print(title: str, report: Report, ended: threading.Event, console: Console, seconds: float) -> None:
    while not ended.wait(seconds):
        print(f"{title}: {report()[1]}", file=sys.stderr, flush=True)


def stage(name: str, done: float) -> str:
    """Return the stage of something that loads, with the part that is done, unless its name says it."""
    return name if "%" in name else f"{name} {done:.0%}"


class Pace:
    """The rate of a growing number, since the start, and the time that is left."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def rate(self, done: float) -> float:
        """Return how much is done in a second."""
        return done / max(time.monotonic() - self._start, 1e-9)

    def left(self, done: float, total: float) -> str:
        """Return the time that is left at this rate; empty as long as nothing is done."""
        return f", {duration((total - done) / self.rate(done))} left" if done else ""


class LoadPulse(ExitStack):
    """The display of the stage of a server that loads, from its first note until it is closed."""

    def __init__(self, title: str = "server") -> None:
        super().__init__()
        self._title = title
        self._stage, self._done = "", 0.0

    def note(self, name: str, done: float) -> None:
        """Take the stage, and its part that is done. The thread that shows it starts late: a child may start before."""
        begins = not self._stage
        self._stage, self._done = name, done
        if begins:
            self.enter_context(showing(self._title, lambda: (self._done, stage(self._stage, self._done))))
