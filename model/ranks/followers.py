"""The other ranks, as rank 0 sees them: what they send, whether they live, and their end."""

import contextlib
import logging
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NoReturn

from model.errors import ModelError
from model.machine.child import LOADING_SILENCE_SECONDS, SILENCE_SECONDS, STOPPED_SECONDS, ending, is_stopped
from model.machine.forking import ForkedProcess
from model.ranks.links import RankLink, packed
from model.ranks.troubles import TroubleKind, Troubles

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.25
EXIT_SECONDS = 1.0
LOADING_END_SECONDS = 5.0
"""Time for rank 0 to notice that a rank is gone while it loads; then its process ends."""

Processes = Mapping[int, ForkedProcess]


class Lost(ModelError):
    """A rank is gone."""


class Followers:
    """All ranks but rank 0. `processes` are those that this process has started, by rank.

    When one is gone, or raises, all end: the local ones are killed, the others see that the connection closes.
    """

    def __init__(self) -> None:
        self._links: dict[int, RankLink] = {}
        self._processes: Processes = {}
        self._boxes: dict[tuple[int, str], queue.SimpleQueue[Any]] = {}
        self._silent: dict[int, float] = {}  # seconds
        self._replies: dict[int, queue.SimpleQueue[Any]] = {}
        self._numbers = count()
        self._lost: Callable[[str], None] | None = None
        self._troubles = Troubles(self._end)
        self._lock = threading.Lock()
        self._over = threading.Event()

    def connect(self, links: Mapping[int, RankLink], processes: Processes) -> None:
        """Read what the ranks send from now on."""
        self._links, self._processes = dict(links), processes
        self._silent = dict.fromkeys(links, 0.0)
        self._boxes = {(rank, kind): queue.SimpleQueue() for rank in links for kind in ("identity", "offer", "output")}
        for rank in links:
            threading.Thread(target=self._read, args=(rank,), name=f"rank-{rank}", daemon=True).start()
        threading.Thread(target=self._watch, name="ranks-watch", daemon=True).start()

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call `lost` with the reason when a rank is gone. From now on the group serves."""
        with self._lock:
            self._lost = lost
        if self._troubles.reason is not None:
            lost(self._troubles.reason)

    def check(self) -> None:
        """Raise Lost if a rank is gone."""
        if self._troubles.reason is not None:
            raise Lost(self._troubles.reason)

    def end(self, error: Exception) -> NoReturn:
        """End all ranks, because rank 0 raised. Raises Lost with the likeliest reason, if this process still lives."""
        self._troubles.note(TroubleKind.OWN, f"rank 0 failed: {type(error).__name__}: {error}")
        self._over.wait()
        raise Lost(self._troubles.reason) from error

    def send(self, kind: str, body: Any = None) -> None:
        """Send a message to all ranks."""
        self.send_plan(packed(kind, body), frozenset(), b"")

    def send_plan(self, frame: bytes, others: frozenset[int], for_others: bytes) -> None:
        """Write a frame to all ranks, and another one to `others`. A rank that is gone is noticed elsewhere."""
        for rank, link in self._links.items():
            with contextlib.suppress(OSError):
                link.write(for_others if rank in others else frame)

    def take(self, rank: int, kind: str) -> Any:
        """Take the next body of this kind from a rank. Raises Lost."""
        return self._got(self._boxes[rank, kind])

    def take_all(self, kind: str) -> dict[int, Any]:
        """Take one body of this kind from each rank. Raises Lost."""
        return {rank: self.take(rank, kind) for rank in self._links}

    def call(self, rank: int, name: str, *arguments: Any) -> Any:
        """Call a rank; return its answer. Any thread may call. Raises Lost."""
        number, box = next(self._numbers), queue.SimpleQueue[Any]()
        self._replies[number] = box
        with contextlib.suppress(OSError):
            self._links[rank].send(name, [number, *arguments])
        if self._troubles.reason is not None:
            box.put(Lost)
        value = self._got(box)
        del self._replies[number]
        return value

    def _got(self, box: "queue.SimpleQueue[Any]") -> Any:
        value = box.get()
        if value is Lost:
            box.put(Lost)
            raise Lost(self._troubles.reason)
        return value

    def _read(self, rank: int) -> None:
        for kind, body, _ in self._links[rank].received():
            self._silent[rank] = 0.0
            if kind == "failed":
                self._troubles.note(TroubleKind.RAISED, f"rank {rank} failed: {body}")
                return
            self._take(rank, kind, body)
        self._troubles.note(TroubleKind.GONE, self._how_it_ended(rank))

    def _take(self, rank: int, kind: str, body: Any) -> None:
        if kind == "log":
            level, text = body
            log.log(level, "rank %d: %s", rank, text)
        elif kind == "reply":
            number, value = body
            self._replies[number].put(value)
        elif kind != "beat":
            self._boxes[rank, kind].put(body)

    def _watch(self) -> None:
        last = time.monotonic()
        while self._troubles.reason is None:
            time.sleep(WATCH_SECONDS)
            now = time.monotonic()
            passed, last = min(now - last, 2 * WATCH_SECONDS), now  # a delay of this process is no silence
            for rank in self._links:
                self._silent[rank] += passed
                self._check_silence(rank, self._silent[rank])

    def _check_silence(self, rank: int, silent: float) -> None:
        process = self._processes.get(rank)
        if silent > STOPPED_SECONDS and process is not None and is_stopped(process.pid):
            self._troubles.note(TroubleKind.GONE, f"rank {rank} (process {process.pid}) is stopped")
        elif silent > (SILENCE_SECONDS if self._lost else LOADING_SILENCE_SECONDS):
            self._troubles.note(TroubleKind.GONE, f"rank {rank} has been silent for {silent:.0f} s")

    def _how_it_ended(self, rank: int) -> str:
        process = self._processes.get(rank)
        if process is None:
            return f"rank {rank} has closed its connection: its process ended, or its host cannot be reached"
        try:
            how = ending(process.wait(EXIT_SECONDS))
        except subprocess.TimeoutExpired:
            how = "it closed its connection"
        return f"rank {rank} (process {process.pid}) is gone: {how}"

    def _end(self, reason: str) -> None:
        """End all ranks. Threads that wait for a rank get Lost, once `lost` has returned, those in a sum an error."""
        log.error("the ranks end: %s", reason)
        for process in self._processes.values():
            process.kill()
        for link in self._links.values():
            link.close()
        with self._lock:
            lost = self._lost
        if lost is not None:
            lost(reason)
        else:  # this process loads: its main thread should raise Lost, but may wait for a rank of another host
            timer = threading.Timer(LOADING_END_SECONDS, lambda: os._exit(1))
            timer.daemon = True
            timer.start()
        for box in (*self._boxes.values(), *self._replies.values()):
            box.put(Lost)
        self._over.set()
