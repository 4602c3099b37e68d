"""Files of pages: what is damaged is never served, the bound holds, and servers share a directory."""

import errno
import multiprocessing
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.engine.prefixes.files import PageFiles, PageKey, file_name, folders, page_files
from tests.engine.prefixes.pages import N_BYTES, OTHER_PRINT, PRINT, data, files, key, paths
from tests.owners import give_away


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file() and path.name != "lock")


def numbers_in(store: PageFiles) -> set[int]:
    return {number for number in range(300) if file_name(0, key(number).name) in store.names()}


def test_a_page_comes_back_and_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    store = files(tmp_path / "store")
    assert store.write(key(1), data(1))
    assert files(tmp_path / "store").read(key(1), N_BYTES) == data(1)
    assert store.read(key(2), N_BYTES) is None
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store").rglob("*")}
    assert set(modes.values()) == {0o600, 0o700}
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700


def test_no_flipped_bit_is_served(tmp_path: Path) -> None:
    store = files(tmp_path)
    store.write(key(1), data(1))
    (path,) = paths(tmp_path)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        wrong = bytearray(whole)
        wrong[bit // 8] ^= 1 << bit % 8
        path.write_bytes(wrong)
        assert store.read(key(1), N_BYTES) is None, f"bit {bit}"
        assert not path.exists(), "a damaged file stays"


@given(cut=st.integers(0, 400), tail=st.binary(max_size=8), start=st.integers(0, 400), middle=st.binary(max_size=40))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_torn_file_is_served(tmp_path: Path, cut: int, tail: bytes, start: int, middle: bytes) -> None:
    """A part is missing, there is more at the end, or bytes are others, such as zeros that never reached the disk."""
    store = files(tmp_path)
    store.write(key(1), data(1))
    (path,) = paths(tmp_path)
    whole = path.read_bytes()
    torn = whole[: len(whole) - cut] + tail
    torn = torn[:start] + middle + torn[start + len(middle) :]
    path.write_bytes(torn)
    assert store.read(key(1), N_BYTES) == (data(1) if torn == whole else None)
    assert path.exists() == (torn == whole)


@pytest.mark.parametrize("change", ["pool", "parent", "tokens", "fingerprint", "size"])
def test_a_right_file_under_a_wrong_name_is_not_served(tmp_path: Path, change: str) -> None:
    """As if two names were equal: the tokens decide, not the name."""
    asked = key(1)
    wrong: dict[str, tuple[PageKey, PageFiles]] = {
        "pool": (asked._replace(pool=1), files(tmp_path / "a")),
        "parent": (asked._replace(parent=b"p" * 16), files(tmp_path / "a")),
        "tokens": (asked._replace(content=key(2).content), files(tmp_path / "a")),
        "fingerprint": (asked, files(tmp_path / "a", fingerprint=OTHER_PRINT)),
        "size": (asked, files(tmp_path / "a")),
    }
    other, writer = wrong[change]
    writer.write(other, data(1, N_BYTES + (change == "size")))
    right = files(tmp_path)
    right.write(asked, data(1))
    (foreign,), (path,) = paths(tmp_path / "a"), [path for path in paths(tmp_path) if path.parts[-3] != "a"]
    path.write_bytes(foreign.read_bytes())
    assert right.read(asked, N_BYTES) is None
    assert not path.exists()


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Every open fails with EMFILE."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_a_free_descriptor_no_page_is_removed(tmp_path: Path) -> None:
    store = files(tmp_path)
    store.write(key(1), data(1))
    with without_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            store.read(key(1), N_BYTES)
        with pytest.raises(OSError, match="Too many open files"):
            store.names()
    assert store.read(key(1), N_BYTES) == data(1)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENFILE, errno.ENOMEM, errno.ESTALE])
def test_a_file_that_cannot_be_opened_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = files(tmp_path)
    store.write(key(1), data(1))

    def fails(*given: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        with pytest.raises(OSError, match=os.strerror(number)):
            store.read(key(1), N_BYTES)
    assert store.read(key(1), N_BYTES) == data(1)


def test_a_file_whose_blocks_cannot_be_read_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page of a process's own memory gives EIO, as a broken block of a disk does."""
    store = files(tmp_path)
    store.write(key(1), data(1))
    with monkeypatch.context() as patch:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
        patch.setattr(os, "open", lambda *given: memory)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            store.read(key(1), N_BYTES)
    assert store.read(key(1), N_BYTES) == data(1)


@pytest.mark.parametrize("name", ["lock", "unfinished", "folder"])
def test_no_link_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    """A link in place of a file or a folder: nothing is written or removed where it leads."""
    store, outside = files(tmp_path / "store", limit=400), tmp_path / "outside"
    outside.mkdir()
    (outside / "data").write_bytes(b"of somebody")
    (outside / "data.page").write_bytes(bytes(500))
    place = tmp_path / "store" / (PRINT if name == "folder" else name)
    place.parent.mkdir()
    place.symlink_to(outside if name == "folder" else outside / "data")
    with suppress(OSError):
        store.write(key(1), data(1))
    assert sorted(path.name for path in outside.iterdir()) == ["data", "data.page"]
    assert (outside / "data").read_bytes() == b"of somebody"


@pytest.mark.parametrize("name", ["", "lock", PRINT])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_what_another_user_may_change_is_neither_read_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    store = files(tmp_path / "store")
    store.write(key(1), data(1))
    place = tmp_path / "store" / name
    if how == "owner":
        give_away(place, monkeypatch)
    else:
        place.chmod(0o777)
    with pytest.raises(PermissionError, match=f"owns {place}," if how == "owner" else f"mode 0777 of {place} lets"):
        store.write(key(2), data(2))
    if name != "lock":
        with pytest.raises(PermissionError, match=str(place)):
            store.names()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    store = files(tmp_path / "store")
    store.write(key(1), data(1))
    (path,) = paths(tmp_path / "store")
    path.rename(tmp_path / "elsewhere")
    {"pipe": os.mkfifo, "link": lambda path: path.symlink_to(tmp_path / "elsewhere"), "folder": Path.mkdir}[kind](path)
    assert store.read(key(1), N_BYTES) is None


def test_the_least_recently_used_pages_go_first(tmp_path: Path) -> None:
    store = files(tmp_path)
    store.write(key(0), data(0))
    size = bytes_in(tmp_path) - len("a model")
    store = files(tmp_path, limit=8 * size)
    for number in range(1, 8):
        store.write(key(number), data(number))
    for age, number in enumerate([3, 0, 7, 6, 5, 4, 2, 1]):
        name = key(number).name
        os.utime(next(path for path in paths(tmp_path) if path.name.startswith(name.hex())), (1e6 + age, 1e6 + age))
    assert store.read(key(3), N_BYTES) is not None
    store.touch(0, key(0).name)
    for number in (8, 9):
        store.write(key(number), data(number))
    assert numbers_in(store) == {0, 1, 2, 3, 4, 5, 8, 9}


def test_a_removal_leaves_an_eighth_of_the_bound_and_the_lock_has_the_bytes(tmp_path: Path) -> None:
    """The next removal comes late, and no write counts the files."""
    files(tmp_path).write(key(0), data(0))
    size = paths(tmp_path)[0].stat().st_size
    store = files(tmp_path, limit=16 * size)
    for number in range(1, 17):
        store.write(key(number), data(number))
        assert int((tmp_path / "lock").read_bytes()) == len(paths(tmp_path)) * size
    assert len(paths(tmp_path)) == 14 + 1


def test_pages_behind_a_link_are_not_removed(tmp_path: Path) -> None:
    """A link with the name of another fingerprint leads out of the directory."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "of somebody.page").write_bytes(bytes(300))
    store = files(tmp_path / "store", limit=400)
    store.write(key(1), data(1))
    (tmp_path / "store" / OTHER_PRINT).symlink_to(outside)
    (tmp_path / "store" / "lock").unlink()  # the files are counted again
    assert store.write(key(2), data(2))
    assert [path.name for path in outside.iterdir()] == ["of somebody.page"]


def test_a_link_among_the_pages_has_its_own_bytes_and_not_those_of_its_target(tmp_path: Path) -> None:
    store = files(tmp_path / "store", limit=1000)
    store.write(key(1), data(1))
    (tmp_path / "data").write_bytes(bytes(5000))
    (tmp_path / "store" / PRINT / "other.page").symlink_to("../../data")
    (tmp_path / "store" / "lock").unlink()  # the files are counted again
    assert store.write(key(2), data(2))
    assert numbers_in(store) == {1, 2}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 300), st.booleans()), max_size=60))
@settings(max_examples=60, deadline=None)
def test_two_servers_never_exceed_the_bound(steps: list[tuple[int, int, bool]]) -> None:
    """With other fingerprints, sizes and at times without a count, as a lock has none after its file was removed."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        directory, limit = Path(folder), 4000
        servers = files(directory, limit), files(directory, limit, OTHER_PRINT)
        for number, n_bytes, second in steps:
            if number == 0:
                (directory / "lock").unlink(missing_ok=True)
            assert servers[second].write(key(number), data(number, n_bytes))
            assert sum(file.n_bytes for place in folders(directory) for file in page_files(place)) <= limit


def test_a_page_that_is_larger_than_the_bound_is_not_written(tmp_path: Path) -> None:
    assert not files(tmp_path, limit=100).write(key(1), data(1))
    assert not paths(tmp_path)


def test_a_removed_directory_is_made_again(tmp_path: Path) -> None:
    store = files(tmp_path / "store")
    store.write(key(1), data(1))
    for path in sorted((tmp_path / "store").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "store").rmdir()
    assert not store.names()
    assert store.write(key(2), data(2))
    assert store.read(key(2), N_BYTES) == data(2)


def write_many(directory: Path, numbers: range) -> None:
    store = files(directory, limit=40_000)
    for number in numbers:
        store.write(key(number), data(number, 1000))
        store.read(key(number // 2), 1000)


def test_a_server_that_dies_in_a_write_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    """The file has no name yet. Its bytes, which the lock has counted, are those of the next page."""
    store = files(tmp_path)
    store.write(key(1), data(1))
    (tmp_path / "unfinished").write_bytes(b"half a page")
    store.write(key(2), data(2))
    assert [path.name for path in tmp_path.iterdir() if path.name == "unfinished"] == []
    assert store.read(key(2), N_BYTES) == data(2)


def test_processes_share_a_directory(tmp_path: Path) -> None:
    """They write the same pages and others, remove what is old, and two are killed. Nobody reads a wrong byte."""
    context = multiprocessing.get_context("spawn")
    jobs = [context.Process(target=write_many, args=(tmp_path, range(n % 2 * 50, 300))) for n in range(4)]
    for job in jobs:
        job.start()
    for job in jobs[:2]:
        job.join(timeout=1.0)
        job.kill()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs[2:]] == [0, 0]
    store = files(tmp_path)
    found = numbers_in(store)
    assert found
    assert all(store.read(key(number), 1000) == data(number, 1000) for number in found)
    assert bytes_in(tmp_path) <= 40_000 + len("a model")
