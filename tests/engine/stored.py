"""A disk for the scheduler, without files and threads, and engines that share it, one after the other."""

from collections import Counter
from random import Random
from typing import Any

from model.batch import PageBytes, RunnerInfo
from model.sampling_params import SamplingParams
from service.engine.prefixes.files import PageKey
from service.engine.prefixes.store import PageRead, PrefixStore
from tests.engine.driving import Drive, expected

Disk = dict[tuple[int, bytes], tuple[PageKey, bytes]]
"""Pages by pool and name."""


class FakeStore(PrefixStore):
    """The store of one engine over a disk. Pages are read when `work` is called. With `luck` things go wrong.

    It may take no page, lose pages, and find them damaged.
    """

    def __init__(self, disk: Disk, pages: PageBytes, luck: Random | None) -> None:
        self.disk, self._pages, self._luck = disk, pages, luck  # without the threads of a real store
        self.counts: Counter[str] = Counter()
        self.readings: list[PageRead] = []
        self.touched: list[bytes] = []

    @property
    def is_writing(self) -> bool:
        return self._fails(0.3)

    def has(self, pool: int, name: bytes) -> bool:
        return (pool, name) in self.disk

    def save(self, page: int, key: PageKey) -> bool:
        if self.has(key.pool, key.name):
            self.touched.append(key.name)
            return True
        if self._fails(0.2):
            return False
        self.disk[key.pool, key.name] = key, bytes(self._pages.read(key.pool, page)())
        self.counts["pages_written"] += 1
        return True

    def remove(self, pool: int, name: bytes) -> None:
        self.disk.pop((pool, name), None)

    def read(self, reading: PageRead) -> None:
        self.readings.append(reading)

    def finish(self, seconds: float) -> None:
        pass

    def work(self) -> None:
        """Read what is to be read, or with `luck` some of it."""
        while self.readings and not self._fails(0.3):
            reading = self.readings.pop(0)
            for _, key in reading.pages:
                known, data = self.disk.get((key.pool, key.name), (None, b""))
                if known is None or self._fails(0.1):
                    self.remove(key.pool, key.name)
                    break
                assert known == key, "two pages have one name"
                if not reading.fill(self._pages, memoryview(data)):
                    break
            reading.done = True

    def _fails(self, chance: float) -> bool:
        return self._luck is not None and self._luck.random() < chance


class StoredDrive(Drive):
    """A `Drive` whose pages go to `disk`."""

    store: FakeStore

    def __init__(self, info: RunnerInfo, disk: Disk, *, luck: Random | None = None, **options: Any) -> None:
        self._disk, self._luck = disk, luck
        super().__init__(info, **options)

    def new_store(self) -> FakeStore:
        self.store = FakeStore(self._disk, self.runner.pages, self._luck)
        return self.store

    def launch(self) -> Any:
        """As `Drive`. An empty step is planned again: there may be nothing to do but to read."""
        while True:
            self.store.work()
            batch = super().launch()
            if batch or self.flights or not self.scheduler.waits_for_files:
                return batch

    def serve(self, prompt: list[int], params: SamplingParams, **more: Any) -> tuple[int, int]:
        """The tokens from the cache, and from the disk, of a request that gets its right answer."""
        number = len(self.updates)
        self.submit(number, prompt, params, **more)
        self.run()
        assert self.answers[number] == expected(prompt, params)
        found = self.admitted(number)
        return found.cached, found.from_disk
