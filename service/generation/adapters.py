"""The LoRA adapters that requests may name: their names, and the numbers under which the engine has them."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from model.checkpoint.digest import adapter_files, stamp
from model.errors import quoted
from service.engine.client import EngineClient
from service.engine.supervision.adapters import files_state
from service.errors.errors import AdapterExists, AdapterNotFound, InvalidRequest, Unavailable
from service.settings import Settings

MAX_ADAPTERS = 1024
"""Adapters that may have a name at one time. Metrics have series for each."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter in the directory `path`.

    `files` is the state of its files, `stamp` that of those that are read, `created` is in Unix seconds.
    """

    name: str
    number: int
    path: Path
    files: str
    stamp: str = ""
    created: int = field(default_factory=lambda: int(time.time()))


class Adapters:
    """The adapters by name: those that are `given` at the start, and those that are loaded later.

    An adapter that is unloaded has no name any more. The engine keeps it until the last request that uses it has ended,
    even if another engine has to compute that request.
    """

    def __init__(self, client: EngineClient, given: Iterable[Adapter]) -> None:
        self._client = client
        self._named = {adapter.name: adapter for adapter in given}
        self._n_numbers = len(self._named)
        self._loading: set[str] = set()
        self._users: Counter[int] = Counter()  # requests in flight, by the number of their adapter

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._named.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._named)

    @property
    def numbered(self) -> dict[int, str]:
        """The names by number."""
        return {adapter.number: name for name, adapter in self._named.items()}

    def find(self, name: str) -> Adapter | None:
        return self._named.get(name)

    @contextmanager
    def using(self, adapter: Adapter) -> Iterator[None]:
        """Keep the adapter in the engine inside the context. Raises Unavailable if the engine has lost it."""
        if adapter.number in self._client.adapters.lost:
            problem = "its files are gone or have changed; it must be unloaded, and loaded again"
            raise Unavailable(f"the adapter {quoted(adapter.name)} is lost: {problem}", "adapter_lost")
        self._users[adapter.number] += 1
        try:
            yield
        finally:
            self._users[adapter.number] -= 1
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
        number = self._n_numbers
        self._loading.add(name)
        try:
            adapter = await asyncio.to_thread(_seen, name, number, path)
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
        if self._users[adapter.number]:
            return
        del self._users[adapter.number]
        if self._named.get(adapter.name) is not adapter:
            self._client.unload_adapter(adapter.number)


def given_adapters(settings: Settings) -> tuple[Adapter, ...]:
    """The adapters of --lora, numbered from 1. Raises OptionError."""
    given = enumerate(settings.adapters_given.items(), start=1)
    return tuple(_seen(name, number, path) for number, (name, path) in given)


def _seen(name: str, number: int, path: Path) -> Adapter:
    """An adapter with the present state of its files; "" for files that cannot be seen, which the engine refuses."""
    files, seen = files_state(path), ""
    with suppress(OSError):
        seen = stamp(adapter_files(path))
    return Adapter(name, number, path, files, seen)
