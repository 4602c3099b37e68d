"""The events of the last minutes and counts that explain what a server does, and the sentence on what is wrong now."""

import faulthandler
import os
import time
from collections import Counter, deque
from typing import Any

MAX_EVENTS, MAX_CHARS = 1000, 300
"""Events, and characters of a text in one."""
MAX_STACKS, STACK_BYTES = 4, 2**16


class Journal:
    """Events by kind and time, without a prompt, an answer, a key or a header. Any thread may call `note`.

    `trouble` says what is wrong, None if nothing is. `n_deaths` counts engines that have ended, `refused` requests by
    the code of their error, `n_wrong` the wrong answers of the canary.
    """

    def __init__(self) -> None:
        self.events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self.stacks: deque[dict[str, Any]] = deque(maxlen=MAX_STACKS)
        self.refused: Counter[str] = Counter()
        self.n_deaths = self.n_wrong = 0
        self.trouble: str | None = None

    def note(self, kind: str, reason: str = "", **facts: str) -> None:
        self.events.append({"time": time.time(), "kind": kind, "reason": reason[:MAX_CHARS], **facts})

    def note_death(self, model: str, reason: str, stacks: str) -> None:
        """Take the end of an engine with the stacks of its threads if it wrote some; then also those of the service."""
        self.note("engine", reason, model=model)
        self.n_deaths += 1
        if stacks:
            with os.fdopen(os.memfd_create("noria-stacks"), "w+b", buffering=0) as file:
                faulthandler.dump_traceback(file)
                own = os.pread(file.fileno(), STACK_BYTES, 0).decode(errors="replace")
            self.stacks.append({"time": time.time(), "model": model, "engine": stacks, "service": own})
