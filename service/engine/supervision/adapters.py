"""The LoRA adapters that every engine gets: those of the start, and those that were loaded since."""

import asyncio
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from model.errors import ModelError
from service.engine.messages import AdapterLoaded

log = logging.getLogger("noria.engine")


class Kept(NamedTuple):
    """Where an adapter is, and the state of its files when it was loaded."""

    path: str
    files: str


class KeptAdapters:
    """The adapters by number. `lost` are those whose files are gone or have changed since: no later engine gets them.

    An engine that serves has read the adapters of its options. So a later one can read those whose files are the same,
    and no adapter keeps it from its start.
    """

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self._started = False
        self._kept: dict[int, Kept] = {}
        self._in_engine: set[int] = set()
        self._loads: dict[int, asyncio.Future[str]] = {}  # what engines are asked to read now

    def start(self, adapters: Iterable[tuple[int, str]]) -> None:
        """Note what the first engine gets. A second call does nothing: adapters outlive the model's engines."""
        if self._started:
            return
        self._started = True
        self._kept = {number: Kept(path, files_state(Path(path))) for number, path in adapters}
        self._in_engine = set(self._kept)

    def for_next_engine(self) -> list[tuple[int, str]]:
        """The adapters for the options of the next engine."""
        for number, (path, files) in self._kept.items():
            if number not in self.lost and files_state(Path(path)) != files:
                log.error("the files of adapter %d have changed or gone (%s): its requests fail", number, path)
                self.lost.add(number)
        self._in_engine = self._kept.keys() - self.lost
        return [(number, self._kept[number].path) for number in sorted(self._in_engine)]

    async def read(self, number: int, path: str) -> None:
        """Wait until the engine has read an adapter. Raises ModelError if it cannot serve, or what `fail` is given."""
        self._loads[number] = loaded = asyncio.get_running_loop().create_future()
        files = await asyncio.to_thread(files_state, Path(path))
        if problem := await loaded:
            raise ModelError(problem)
        self._kept[number] = Kept(path, files)
        self._in_engine.add(number)

    def note(self, answer: AdapterLoaded) -> None:
        """Take the engine's answer."""
        load = self._loads.pop(answer.adapter, None)
        if load is not None and not load.done():
            load.set_result(answer.problem)

    def fail(self, error: Exception) -> None:
        """The engine has ended: it reads nothing more."""
        loads, self._loads = self._loads, {}
        for load in loads.values():
            if not load.done():
                load.set_exception(error)

    def drop(self, number: int) -> None:
        """Forget an adapter, which no engine may have had yet."""
        self._kept.pop(number, None)
        self.lost.discard(number)

    def superfluous(self) -> set[int]:
        """Numbers of adapters that the engine has and nobody needs. It is told to forget them."""
        numbers = self._in_engine - self._kept.keys()
        self._in_engine -= numbers
        return numbers


def files_state(path: Path) -> str:
    """A hash of names, sizes, times and rights of an adapter's files; "" if they cannot be seen."""
    about: list[tuple[str, int, int, bool]] = []
    with suppress(OSError):
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            status = file.stat()
            about.append((file.name, status.st_size, status.st_mtime_ns, os.access(file, os.R_OK)))
        return sha256(repr(about).encode()).hexdigest()
    return ""
