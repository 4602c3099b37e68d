"""The threads that write and read pages: the loop never waits, and no trouble of the disk stops it."""

import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from model.batch import PrefixFiles
from model.errors import OptionError
from service.engine.prefixes import store as module
from service.engine.prefixes.files import PageFiles, PageKey
from service.engine.prefixes.store import PageRead, PrefixStore, open_store
from tests.engine.prefixes.pages import N_BYTES, PRINT, data, files, key, paths
from tests.fakes import make_info
from tests.waiting import PATIENCE, eventually

WAIT = PATIENCE


class Pages:
    """Pages whose content is `data` of their number."""

    def __init__(self) -> None:
        self.written: dict[int, bytes] = {}
        self.may_write = threading.Event()
        self.may_write.set()
        self.begins = threading.Event()

    def page_bytes(self, pool: int) -> int:
        return N_BYTES

    def read(self, pool: int, page: int) -> Callable[[], memoryview]:
        return lambda: data(page)

    def write(self, pool: int, page: int, new: memoryview) -> None:
        self.begins.set()
        self.may_write.wait(WAIT)
        self.written[page] = bytes(new)


class Woken:
    """Counts the calls of `wake`, and waits for them."""

    def __init__(self) -> None:
        self._calls = threading.Semaphore(0)

    def __call__(self) -> None:
        self._calls.release()

    def wait(self, done: Callable[[], object]) -> None:
        while not done():
            assert self._calls.acquire(timeout=WAIT), "the store does not wake the loop"


def new_store(directory: Path, pages: Pages, page_files: PageFiles | None = None) -> tuple[PrefixStore, Woken]:
    woken = Woken()
    return PrefixStore(page_files or files(directory), pages, woken), woken


def test_pages_are_written_and_read_by_another_store(tmp_path: Path) -> None:
    first, woken = new_store(tmp_path, Pages())
    assert all(first.save(number, key(number)) for number in range(5))
    woken.wait(lambda: first.counts["pages_written"] == 5 and not first.is_writing)
    pages = Pages()
    second, woken = new_store(tmp_path, pages)
    assert second.has(0, key(3).name)
    assert second.progress is None
    second.read(reading := PageRead([(10 + number, key(number)) for number in range(5)]))
    woken.wait(lambda: reading.done)
    assert (reading.n_read, second.progress) == (5, None)
    assert pages.written == {10 + number: bytes(data(number)) for number in range(5)}


def test_a_reading_ends_at_the_first_page_that_is_wrong(tmp_path: Path) -> None:
    store, woken = new_store(tmp_path, pages := Pages())
    for number in range(3):
        store.save(number, key(number))
    store.finish(WAIT)
    damaged = next(path for path in paths(tmp_path) if path.name.startswith(key(1).name.hex()))
    damaged.write_bytes(b"torn")
    store.read(reading := PageRead([(10 + number, key(number)) for number in range(3)]))
    woken.wait(lambda: reading.done)
    assert (reading.n_read, [*pages.written]) == (1, [10])
    assert [store.has(0, key(number).name) for number in range(3)] == [True, False, True]


def test_all_damaged_pages_of_a_reading_are_found_and_written_again(tmp_path: Path) -> None:
    store, woken = new_store(tmp_path, Pages())
    for number in range(5):
        store.save(number, key(number))
    store.finish(WAIT)
    for path in paths(tmp_path):
        if path.name.startswith((key(1).name.hex(), key(3).name.hex())):
            path.write_bytes(b"torn")
    store.read(reading := PageRead([(10 + number, key(number)) for number in range(5)]))
    woken.wait(lambda: reading.done)
    assert [store.has(0, key(number).name) for number in range(5)] == [True, False, True, False, True]
    for number in range(5):
        store.save(number, key(number))
    store.finish(WAIT)
    assert [files(tmp_path).read(key(number), N_BYTES) for number in range(5)] == [data(n) for n in range(5)]


def test_a_page_that_cannot_be_read_stays_on_disk_and_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sequence goes on without it: it would come back for it at once, for ever."""
    page_files = files(tmp_path)
    store, woken = new_store(tmp_path, Pages(), page_files)
    for number in range(4):
        store.save(number, key(number))
    store.finish(WAIT)
    read = page_files.read

    def fails(one: PageKey, n_bytes: int) -> memoryview | None:
        if one == key(2):
            raise OSError(errno.EMFILE, "Too many open files")
        return read(one, n_bytes)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(page_files, "read", fails)
        store.read(reading := PageRead([(10 + number, key(number)) for number in range(4)]))
        woken.wait(lambda: reading.done)
    assert reading.n_read == 2
    assert [store.has(0, key(number).name) for number in range(4)] == [True, True, False, True]
    assert "pages of --prefix-store cannot be read: [Errno 24] Too many open files" in caplog.text
    store.save(2, key(2))  # it was computed
    store.read(reading := PageRead([(10 + number, key(number)) for number in range(4)]))
    woken.wait(lambda: reading.done)
    assert (reading.n_read, store.counts["pages_dropped"]) == (4, 0)


def test_a_directory_that_cannot_be_listed_loses_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIST_SECONDS", 0.01)
    monkeypatch.setattr(module, "CLOCK_NS", 2**62)  # it is listed again and again
    page_files = files(tmp_path)
    store, _ = new_store(tmp_path, Pages(), page_files)
    store.save(1, key(1))
    store.finish(WAIT)
    failed = threading.Semaphore(0)

    def fails() -> set[str]:
        failed.release()
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(page_files, "names", fails)
        assert failed.acquire(timeout=WAIT)
        assert failed.acquire(timeout=WAIT), "it is not tried again"
        assert store.has(0, key(1).name)


def test_a_cancelled_reading_writes_to_no_page_any_more(tmp_path: Path) -> None:
    store, woken = new_store(tmp_path, pages := Pages())
    for number in range(3):
        store.save(number, key(number))
    store.finish(WAIT)
    pages.may_write.clear()
    store.read(reading := PageRead([(10 + number, key(number)) for number in range(3)]))
    assert pages.begins.wait(WAIT)
    cancel = threading.Thread(target=reading.cancel)
    cancel.start()  # it waits for the page that is being filled
    pages.may_write.set()
    cancel.join(WAIT)
    assert not cancel.is_alive()
    filled = dict(pages.written)
    woken.wait(lambda: reading.done)
    assert pages.written == filled
    reading = PageRead([(20, key(1))])
    reading.cancel()
    store.read(reading)
    woken.wait(lambda: reading.done)
    assert pages.written == filled


def test_a_full_queue_drops_pages_and_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PREFIX_QUEUE_BYTES", 3 * N_BYTES)
    blocked, page_files = threading.Event(), files(tmp_path)
    write = page_files.write
    monkeypatch.setattr(page_files, "write", lambda *page: blocked.wait(WAIT) and write(*page))
    store, _ = new_store(tmp_path, Pages(), page_files)
    assert [store.save(number, key(number)) for number in range(5)] == [True] * 3 + [False] * 2
    blocked.set()
    store.finish(WAIT)
    assert (store.counts["pages_written"], store.counts["pages_dropped"]) == (3, 2)


def test_trouble_is_logged_once_and_pages_go_again_when_it_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "store").write_text("no directory")
    store, _ = new_store(tmp_path / "store", Pages())
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            assert store.save(number, key(number))
        store.finish(WAIT)
    assert len(caplog.records) == 1
    assert "pages of --prefix-store cannot be written" in caplog.text
    assert (store.counts["pages_written"], store.counts["pages_dropped"]) == (0, 4)
    assert not any(store.has(0, key(number).name) for number in range(4)), "a page that is not written counts as saved"
    (tmp_path / "store").unlink()
    assert store.save(0, key(0))
    store.finish(WAIT)
    assert store.has(0, key(0).name)
    assert len(paths(tmp_path)) == 1


def test_a_page_that_cannot_be_written_does_not_wake_the_loop(tmp_path: Path) -> None:
    """An idle loop saves pages when it wakes. It would try the same ones for ever."""
    (tmp_path / "store").write_text("no directory")
    written: list[int] = []  # before each call of `wake`
    store = PrefixStore(files(tmp_path / "store"), Pages(), lambda: written.append(store.counts["pages_written"]))
    store.save(1, key(1))
    eventually(lambda: store.counts["pages_dropped"] and not store.is_writing, "the failure")
    (tmp_path / "store").unlink()
    store.save(2, key(2))
    eventually(lambda: written, "a call")
    assert 0 not in written


def test_a_damaged_page_that_cannot_be_removed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_files = files(tmp_path)
    store, woken = new_store(tmp_path, Pages(), page_files)
    store.save(1, key(1))
    store.finish(WAIT)
    monkeypatch.setattr(page_files, "remove", lambda *page: None)
    paths(tmp_path)[0].write_bytes(b"torn")
    store.read(reading := PageRead([(10, key(1))]))
    woken.wait(lambda: reading.done)
    assert not store.has(0, key(1).name)


def test_a_store_sees_what_another_one_writes_and_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIST_SECONDS", 0.01)
    store, _ = new_store(tmp_path, Pages())
    other = files(tmp_path)
    other.write(key(1), data(1))
    eventually(lambda: store.has(0, key(1).name), "the new page")
    other.remove(0, key(1).name)
    other.write(key(2), data(2))
    eventually(lambda: store.has(0, key(2).name) and not store.has(0, key(1).name), "the removed page")


def test_a_page_that_was_written_and_removed_between_two_lists_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIST_SECONDS", 0.01)
    page_files, other = files(tmp_path), files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(page_files, "changed", lambda: -1)
        store, _ = new_store(tmp_path, Pages(), page_files)
        store.save(1, key(1))
        store.finish(WAIT)
        other.remove(0, key(1).name)
    eventually(lambda: not store.has(0, key(1).name), "the next list")
    store.save(1, key(1))
    store.finish(WAIT)
    assert paths(tmp_path)


def test_a_page_that_is_written_while_the_directory_is_read_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_files = files(tmp_path)
    store, _ = new_store(tmp_path, Pages(), page_files)
    names = page_files.names

    def read_slowly() -> set[str]:
        found = names()
        store.save(1, key(1))
        store.finish(WAIT)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(page_files, "names", read_slowly)
        patch.setattr(page_files, "changed", lambda: 7)
        store._list_once()
    assert store.has(0, key(1).name)


def test_a_disk_that_hangs_stops_no_call_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the start, nor a question for a page, nor a page to write or to read waits for it."""
    monkeypatch.setattr(module, "FIRST_LIST_SECONDS", 0.01)
    page_files, hangs = files(tmp_path), threading.Event()
    page_files.write(key(1), data(1))
    for name in ("changed", "names", "read", "write", "touch", "remove"):
        monkeypatch.setattr(page_files, name, lambda *page: hangs.wait())
    store, _ = new_store(tmp_path, Pages(), page_files)
    assert not store.has(0, key(1).name)
    assert store.save(2, key(2))
    assert store.save(2, key(2)), "it is touched"
    store.remove(0, key(1).name)
    store.read(reading := PageRead([(10, key(1))]))
    reading.cancel()
    store.finish(0.01)
    assert (reading.done, store.progress) == (False, 0)


def test_a_directory_for_less_than_two_pages_is_refused(tmp_path: Path) -> None:
    info = make_info()
    assert open_store(info, Pages(), lambda: None) is None
    wanted = PrefixFiles(str(tmp_path), 2 * N_BYTES - 1, PRINT, "a model")
    with pytest.raises(OptionError, match=f"--prefix-store-size 191 is less than two pages, of {N_BYTES} bytes"):
        open_store(replace(info, prefixes=wanted), Pages(), lambda: None)
