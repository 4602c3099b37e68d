"""The LoRA adapters that requests may name: their names, and the numbers under which the engine has them."""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from model.checkpoint.digest import adapter_files, stamp
from model.checkpoint.files import fingerprint
from model.errors import quoted
from service.engine.client import EngineClient
from service.errors.errors import AdapterExists, AdapterNotFound, InvalidRequest, Unavailable
from service.settings import Settings

log = logging.getLogger("noria.engine")

MAX_ADAPTERS = 1024
"""Adapters that may have a name at one time. Metrics have series for each."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter in the directory `path`.

    `files` is the state of its files before an engine reads them, `stamp` that of those that are read. `content` is the
    same for each copy of these. `created` is in Unix seconds.
    """

    name: str
    number: int
    path: Path
    files: str = ""
    stamp: str = ""
    content: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def seen(self) -> "Adapter":
        """Return it with the present state of its files; "" if they cannot be read: the engine refuses them."""
        files, stamped, content = files_state(self.path), "", ""
        with suppress(OSError):
            read = adapter_files(self.path)
            stamped, content = stamp(read), " ".join(map(fingerprint, read))
        return replace(self, files=files, stamp=stamped, content=content)


class Adapters:
    """The adapters by name: those that are `given` at the start, and those that are loaded later.

    An adapter that is unloaded has no name any more. The engine has it until the last request that uses it has ended,
    even if another engine has to compute that request. An engine that serves has read the adapters of its options: a
    later engine can read those whose files are the same, and no adapter prevents its start.
    """

    def __init__(self, client: EngineClient, given: Iterable[Adapter]) -> None:
        self._client = client
        self._named = {adapter.name: adapter for adapter in given}
        self._n_numbers = len(self._named)
        self._loading: set[str] = set()
        self._users: Counter[Adapter] = Counter()  # requests in flight
        self._lost: set[Adapter] = set()  # their files are gone or have changed: no later engine gets them
        self._started = False
        client.adapters = self.for_next_engine

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._named.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._named)

    @property
    def numbered(self) -> dict[int, str]:
        """Return the names by number."""
        return {adapter.number: name for name, adapter in self._named.items()}

    def find(self, name: str) -> Adapter | None:
        return self._named.get(name)

    @contextmanager
    def using(self, adapter: Adapter) -> Iterator[None]:
        """Keep the adapter in the engine inside the context. Raises Unavailable if the engine has lost it."""
        if adapter in self._lost:
            problem = "its files are gone or have changed; it must be unloaded, and loaded again"
            raise Unavailable(f"the adapter {quoted(adapter.name)} is lost: {problem}", "adapter_lost")
        self._users[adapter] += 1
        try:
            yield
        finally:
            self._users[adapter] -= 1
            self._release(adapter)

    async def load(self, name: str, path: Path) -> Adapter:
        """Load an adapter, which may serve at once.

        Raises AdapterExists, InvalidRequest, ModelError, EngineUnavailable or EngineDied.
        """
        if name in self._named or name in self._loading:
            raise AdapterExists(name)
        if len(self._named) + len(self._loading) >= MAX_ADAPTERS:
            raise InvalidRequest(f"{MAX_ADAPTERS} adapters are loaded, the limit is {MAX_ADAPTERS}", param="lora_name")
        self._n_numbers += 1
        adapter = Adapter(name, self._n_numbers, path)
        self._loading.add(name)
        try:
            adapter = await asyncio.to_thread(adapter.seen)
            await self._client.load_adapter(adapter.number, str(path))
        finally:
            self._loading.discard(name)
        self._named[name] = adapter
        return adapter

    def unload(self, name: str) -> None:
        """Take the name from an adapter: no new request may use it. Raises AdapterNotFound."""
        adapter = self._named.pop(name, None)
        if adapter is None:
            raise AdapterNotFound(name)
        self._release(adapter)

    def _release(self, adapter: Adapter) -> None:
        """Let the engine forget an adapter that has neither a name nor a request."""
        if self._users[adapter]:
            return
        del self._users[adapter]
        if self._named.get(adapter.name) is not adapter:
            self._lost.discard(adapter)
            self._client.unload_adapter(adapter.number)

    def for_next_engine(self) -> list[tuple[int, str]]:
        """Return number and path of the adapters for the next engine: those with a name or a request, and same files.

        The first engine gets them as they are, because none has read them yet.
        """
        if not self._started:
            self._started, self._named = True, {name: item.seen() for name, item in self._named.items()}
        needed = {*self._named.values(), *self._users}
        for adapter in needed - self._lost:
            if files_state(adapter.path) != adapter.files:
                what = adapter.number, adapter.path
                log.error("the files of adapter %d have changed or gone (%s): its requests fail", *what)
                self._lost.add(adapter)
        return sorted((adapter.number, str(adapter.path)) for adapter in needed - self._lost)


def given_adapters(settings: Settings) -> tuple[Adapter, ...]:
    """Return the adapters of --lora, numbered from 1. Raises OptionError."""
    given = enumerate(settings.adapters_given.items(), start=1)
    return tuple(Adapter(name, number, path) for number, (name, path) in given)


def files_state(path: Path) -> str:
    """Return a hash of names, sizes, times and rights of an adapter's files; "" if they cannot be seen."""
    about: list[tuple[str, int, int, bool]] = []
    with suppress(OSError):
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            status = file.stat()
            about.append((file.name, status.st_size, status.st_mtime_ns, os.access(file, os.R_OK)))
        return sha256(repr(about).encode()).hexdigest()
    return ""
