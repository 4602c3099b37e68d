"""The store of responses and conversations: the tables on a thread of their own, because a disk may take its time."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from model.errors import OptionError
from model.machine.owners import problem_of
from service.errors.errors import Unavailable
from service.settings import STORE_BOUNDS, Settings
from service.state.stored import Use
from service.state.tables import MEMORY, Tables

log = logging.getLogger("noria.state")

P = ParamSpec("P")
T = TypeVar("T")
SUFFIXES = ("", "-wal", "-journal")
"""Of the files of a database. SQLite takes what is in a journal, whoever wrote it."""


class Store:
    """The door of the event loop to `Tables`. A store that is not `enabled` holds nothing."""

    def __init__(self, tables: Tables, *, enabled: bool) -> None:
        self.enabled = enabled
        self.n_errors = 0
        self._tables = tables
        self._thread = ThreadPoolExecutor(1, "noria-state")
        self._thread.submit(int)  # starts the thread: later the system may allow no more

    @property
    def use(self) -> Use:
        return self._tables.total

    async def run(self, method: Callable[Concatenate[Tables, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method of the tables. Raises its errors, and Unavailable where the database fails."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, lambda: method(self._tables, *args, **kwargs))
        except sqlite3.Error as error:
            self.n_errors += 1
            log.error("the store of responses failed: %s", error)
            raise Unavailable("the store of responses cannot be used; see the server's log", "store_failed") from None

    async def close(self) -> None:
        await self.run(Tables.close)
        self._thread.shutdown(wait=False)


def opened(settings: Settings) -> Store:
    """Open the store of --responses-store. Raises OptionError for a file that cannot be used."""
    place = settings.responses_store
    files = () if place in STORE_BOUNDS else (Path(f"{place}{suffix}") for suffix in SUFFIXES)
    try:
        if (problem := problem_of(*files)) is not None:
            raise OptionError(f"--responses-store: {problem}")
        tables = Tables(MEMORY if place in STORE_BOUNDS else place, *settings.responses_bounds)
        return Store(tables, enabled=place != "off")
    except (sqlite3.Error, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        locked = "; another server uses it" if "locked" in str(error) else ""
        raise OptionError(f"--responses-store {place}: {reason}{locked}") from error
