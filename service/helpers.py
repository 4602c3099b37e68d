"""Threads with helper processes that may be lost, and a memory of what was used last."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Generic, TypeVar

from model.machine.helper import ATTEMPTS, HelperProcess, ProcessLost
from service.errors.errors import Unavailable

MAX_SUSPECTS = 1024


P = TypeVar("P", bound=HelperProcess)
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LimitsExceeded(Exception):
    """The process has ended itself: its input takes more time or memory than it may."""


class HelperThread(Generic[P]):
    """A thread that talks to a process, because the process dies with the thread that starts it.

    `task` completes "the process that ...", and `code` is the error's, for clients. `on_restart` hears when one process
    replaces another. With `once` each use ends its process.
    """

    def __init__(
        self, task: str, code: str, on_restart: Callable[[], None] = lambda: None, *, once: bool = False
    ) -> None:
        self.process: P | None = None
        self._task = task
        self._code = code
        self._on_restart = on_restart
        self._once = once
        self._closed = False
        self._thread = ThreadPoolExecutor(1, f"noria-{code}")
        self._thread.submit(int)  # start the thread now: later the system may allow no more threads

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread; returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def use(self, start: Callable[[], P], call: Callable[[P], T]) -> T:
        """Call a function with the process, on the thread; returns its result. `start` makes one if none runs.

        A process that is lost is replaced. Raises LimitsExceeded if the input has ended it, Unavailable if several were
        lost in another way, which says nothing of the input.
        """
        for _ in range(ATTEMPTS):
            if self._closed:
                break
            try:
                return call(self._running(start))
            except ProcessLost as lost:
                if lost.by_limits:
                    raise LimitsExceeded(str(lost)) from None
            finally:
                if self._once:
                    self.end()
        raise Unavailable(f"the process that {self._task} was lost; try again", self._code)

    def end(self) -> None:
        if self.process is not None:
            self.process.end()
            self.process = None

    async def close(self) -> None:
        self._closed = True
        if (process := self.process) is not None:
            process.kill()
        await self.run(self.end)
        self._thread.shutdown(wait=False)

    def _running(self, start: Callable[[], P]) -> P:
        """Return the process; a new one if it has ended. Raises CannotStart."""
        before = self.process
        if before is not None:
            if not before.ended:
                return before
            before.end()
        self.process = start()
        if before is not None:
            self._on_restart()
        return self.process


class Recent(Generic[K, V]):
    """The values that were used last, as many as fit in `limit` by their `size`. For any thread."""

    def __init__(self, limit: int, size: Callable[[V], int] = lambda value: 1) -> None:
        self._values: OrderedDict[K, V] = OrderedDict()
        self._left = limit
        self._size = size
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: K) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def note(self, key: K, value: V) -> None:
        self.forget(key)
        with self._lock:
            self._values[key] = value
            self._left -= self._size(value)
            while self._left < 0:
                self._left += self._size(self._values.popitem(last=False)[1])

    def forget(self, key: K) -> None:
        with self._lock:
            if key in self._values:
                self._left += self._size(self._values.pop(key))


class Trial(Generic[P, K, V]):
    """The trial of inputs by a process, one at a time. `recent` has the latest answers by the keys of the inputs.

    An input that exceeds the limits of the process is a suspect. A process of its own gets it `apart`, while the first
    goes on with others. With `lasting` an input that exceeds the limits there, too, is not tried again.
    """

    def __init__(
        self, task: str, code: str, recent: Recent[K, V], on_restart: Callable[[], None], *, lasting: bool = True
    ) -> None:
        self.recent = recent
        self._suspects: Recent[K, bool] = Recent(MAX_SUSPECTS)  # if they exceeded the limits apart, too
        self._first: HelperThread[P] = HelperThread(task, code, on_restart)
        self._apart: HelperThread[P] = HelperThread(task, code, once=True)
        self._lasting = lasting

    async def ask(
        self, key: K, start: Callable[[], P], call: Callable[[P], V], *, apart: bool = False
    ) -> tuple[V, float]:
        """Return the answer of `call` for an input, and the seconds that it took: 0 for a known one.

        `start` makes a process for it where none runs.

        Raises LimitsExceeded for a suspect unless it is tried `apart`, and for one that exceeds the limits there;
        Unavailable without a process.
        """
        helper = self._apart if apart else self._first
        return await helper.run(lambda: self._try(helper, key, start, call))

    async def close(self) -> None:
        await asyncio.gather(self._first.close(), self._apart.close())

    def _try(self, helper: HelperThread[P], key: K, start: Callable[[], P], call: Callable[[P], V]) -> tuple[V, float]:
        began, apart = time.monotonic(), helper is self._apart
        if (known := self.recent.find(key)) is not None:
            return known, 0.0
        if (exceeded := self._suspects.find(key)) or (exceeded is not None and not apart):
            raise LimitsExceeded
        try:
            answer = helper.use(start, call)
        except LimitsExceeded:
            self._suspects.note(key, apart and self._lasting)
            raise
        self.recent.note(key, answer)
        return answer, time.monotonic() - began
