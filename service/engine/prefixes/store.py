"""The store of pages: a thread writes them, another one reads them. The engine's loop never waits for the disk.

The loop copies a page that goes into the queue of the writing thread, whose bytes are bounded: while it is full, pages
are dropped. For a prompt to be read the loop takes pages, and the reading thread fills them. Nobody else sees a page
before it is whole and checked. A third thread lists the directory, where other servers write and remove files.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from model.batch import PREFIX_QUEUE_BYTES, PageBytes, PrefixFiles, RunnerInfo
from model.errors import OptionError
from service.engine.prefixes.files import PageFiles, PageKey, file_name

log = logging.getLogger("noria.engine")

SAVE_SECONDS = 4.0
"""Time to write pages when the server ends. With 5 s for connections to close, the units in `deploy/` allow it."""
LIST_SECONDS = 5.0
"""Between two looks whether other servers have changed the directory."""
FIRST_LIST_SECONDS = 2.0
"""A new store waits so long for the first list: a disk that hangs must not keep an engine from starting."""
CLOCK_NS = 10**9
"""Two changes of a directory in less than this may have one time."""
SILENT_SECONDS = 3600.0
"""The same trouble is logged once in this time."""


class PageRead:
    """Pages to be read: for each its place in the pool and its key. `n_read` of them are filled, once it is `done`.

    `done` is True when no thread will write to the pages any more.
    """

    def __init__(self, pages: Sequence[tuple[int, PageKey]]) -> None:
        self.pages = pages
        self.n_read = 0
        self.done = False
        self._lock = threading.Lock()
        self._cancelled = False

    def cancel(self) -> None:
        """Write to no page any more, from now on."""
        with self._lock:
            self._cancelled = True

    def fill(self, pages: PageBytes, data: memoryview) -> bool:
        """Fill the next page. False if the reading is cancelled."""
        page, key = self.pages[self.n_read]
        with self._lock:
            if not self._cancelled:
                pages.write(key.pool, page, data)
        self.n_read += 1
        return not self._cancelled


class PrefixStore:
    """The pages on disk of one engine. It calls `wake`, on a thread, when pages have been written or read.

    `counts` are those of "pages_written", and of "pages_dropped", because the queue was full or the disk refused them.
    "pages_damaged" and "disk_errors" say what was wrong with the disk, "disk_error" is the latest number of the system.
    """

    def __init__(self, files: PageFiles, pages: PageBytes, wake: Callable[[], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._files, self._pages, self._wake = files, pages, wake
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._readings: queue.SimpleQueue[PageRead] = queue.SimpleQueue()
        self._queued = 0  # bytes
        self._lock = threading.Lock()  # of `_queued`
        self._names: set[str] = set()  # of the files that are there, or wait to be written
        self._waiting: set[str] = set()  # of the latter
        self._has_list = threading.Event()
        self._seen, self._listed = -1, set[str]()  # the directory's `changed`, and its files then
        self._logged: dict[str, float] = {}
        self._n_begun = self._n_done = 0  # readings
        self._n_pages_read = 0
        for name, work in (("writer", self._write), ("reader", self._read), ("lister", self._list)):
            threading.Thread(target=work, name=f"noria-prefix-{name}", daemon=True).start()
        self._has_list.wait(FIRST_LIST_SECONDS)

    @property
    def is_writing(self) -> bool:
        return self._queued > 0

    @property
    def progress(self) -> int | None:
        """Return a number that grows while pages are read; None while none are."""
        return self._n_pages_read if self._n_done < self._n_begun else None

    def has(self, pool: int, name: bytes) -> bool:
        """Return whether a page is on disk, or is about to be written."""
        return file_name(pool, name) in self._names

    def save(self, page: int, key: PageKey) -> bool:
        """Copy a page and write it later; note the use of one that is there already. False if the queue is full."""
        if self.has(key.pool, key.name):
            self._jobs.put(partial(self._files.touch, key.pool, key.name))
            return True
        size = self._pages.page_bytes(key.pool)
        with self._lock:
            if self._queued + size > PREFIX_QUEUE_BYTES and self._queued:
                self.counts["pages_dropped"] += 1
                return False
            self._queued += size
        data = self._pages.read(key.pool, page)
        self._waiting.add(file_name(key.pool, key.name))
        self._names.add(file_name(key.pool, key.name))
        self._jobs.put(partial(self._write_page, key, data, size))
        return True

    def remove(self, pool: int, name: bytes) -> None:
        """Remove a page, which must not be used again."""
        self._names.discard(file_name(pool, name))
        self._jobs.put(partial(self._files.remove, pool, name))

    def read(self, reading: PageRead) -> None:
        """Fill the pages of a reading, until one cannot be read. Those after it are only checked."""
        self._n_begun += 1
        self._readings.put(reading)

    def finish(self, seconds: float) -> None:
        """Wait until all jobs are done, so long at most."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait(seconds)

    def _write(self) -> None:
        while True:
            job = self._jobs.get()
            done = self._try("written", job)
            del job  # and its page
            if done and self._jobs.empty():  # an idle loop would save a page that cannot be written again and again
                self._wake()

    def _write_page(self, key: PageKey, data: Callable[[], memoryview], size: int) -> None:
        written = False
        try:
            written = self._files.write(key, data())
        finally:
            (self._names.add if written else self._names.discard)(file_name(key.pool, key.name))
            self._waiting.discard(file_name(key.pool, key.name))
            self.counts["pages_written" if written else "pages_dropped"] += 1
            with self._lock:
                self._queued -= size

    def _read(self) -> None:
        while True:
            reading = self._readings.get()
            self._try("read", partial(self._fill, reading))
            self._n_done += 1
            reading.done = True
            self._wake()

    def _list(self) -> None:
        """Take note of the files that came and went, such as those of other servers."""
        while True:
            self._try("listed", self._list_once)
            self._has_list.set()
            time.sleep(LIST_SECONDS)

    def _list_once(self) -> None:
        if (changed := self._files.changed()) != self._seen:
            known = {*self._names} - self._waiting  # a file may be written while the directory is read
            before, self._listed = self._listed, self._files.names()
            self._names |= self._listed - before
            self._names -= known - self._listed  # also what was written and removed between two lists
            self._seen = changed if time.time_ns() - changed > CLOCK_NS else -1

    def _fill(self, reading: PageRead) -> None:
        whole = True
        for _, key in reading.pages:
            data = self._page(key)
            if data is None:
                whole = False  # a damaged file after it would keep its page from being written again
            elif whole and not reading.fill(self._pages, data):
                return
            self._n_pages_read += 1

    def _page(self, key: PageKey) -> memoryview | None:
        """Read a page. Forgets one that cannot be read, or a sequence would come back to a disk that fails."""
        data = None
        try:
            data = self._files.read(key, self._pages.page_bytes(key.pool))
        finally:
            if data is None:
                self._names.discard(file_name(key.pool, key.name))
                self.counts["pages_damaged"] = self._files.n_damaged
        return data

    def _try(self, what: str, job: Callable[[], None]) -> bool:
        """Run a job; returns whether it succeeded. The engine serves on without a job that fails."""
        try:
            job()
            return True
        except Exception as error:
            self.counts["disk_errors"] += 1
            self.counts["disk_error"] = getattr(error, "errno", None) or 0
            now = time.monotonic()
            if now - self._logged.get(what, -SILENT_SECONDS) >= SILENT_SECONDS:
                self._logged[what] = now
                log.warning("pages of --prefix-store cannot be %s: %s; Noria serves without them", what, error)
            return False


def open_store(info: RunnerInfo, pages: PageBytes, wake: Callable[[], None]) -> PrefixStore | None:
    """Open the store that a runner names; None if it names none. Raises OptionError if no page fits."""
    files: PrefixFiles | None = info.prefixes
    if files is None:
        return None
    largest = max(map(pages.page_bytes, range(len(info.pools))))
    if files.limit < 2 * largest:
        raise OptionError(f"--prefix-store-size {files.limit} is less than two pages, of {largest} bytes each")
    return PrefixStore(PageFiles(Path(files.directory), files.fingerprint, files.limit, files.about), pages, wake)
