"""The files of pages: one for each full page of a pool. Several servers may share their directory.

    DIR/lock                     who holds it may write and remove; it has the number of bytes in the directory
    DIR/unfinished               the page that is being written
    DIR/FINGERPRINT/about        what the fingerprint stands for, for people
    DIR/FINGERPRINT/NAME-POOL.page

A file is a head, the bytes of the page, and the SHA-256 of both. The head has all that a reader expects: format,
fingerprint, pool, the name of the page before, tokens and media. So a reader compares the head with its own, byte by
byte, and then the hash. A file that was read to its end and differs anywhere is removed, one that cannot be read stays.
It gets its name when it is complete.
"""

import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from model.machine.owners import problem_of

FORMAT = 1
"""Another one if the head, or the meaning of its fields, changes."""
MAGIC = b"noria page"
HEAD = struct.Struct("<10sHHHIQ")
"""Magic, format, pool, bytes of the name before, of the content, and of the page."""
ALIGNMENT = 64
HASH_BYTES = sha256().digest_size
FOLDER = re.compile(r"[0-9a-f]{32}")
SUFFIX = ".page"
ABSENT = (FileNotFoundError, NotADirectoryError)
LEFT = 7 / 8
"""The part of the bound that a removal of files leaves: the next one then comes late."""


class PageKey(NamedTuple):
    """The identity of a page on disk: its pool and name, and the bytes that the name hashes (`pages.page_name`)."""

    pool: int
    name: bytes
    parent: bytes
    content: bytes


class PageFiles:
    """The pages with one fingerprint in `directory`, which has at most `limit` bytes of pages with any.

    Any thread may call this. All but `remove` raise OSError, for example if no descriptor is free.
    """

    def __init__(self, directory: Path, fingerprint: str, limit: int, about: str = "") -> None:
        self._directory, self._limit, self._about = directory, limit, about
        self._folder = directory / fingerprint
        self._fingerprint = bytes.fromhex(fingerprint)
        self.n_damaged = 0  # pages that had other bytes

    def changed(self) -> int:
        """Return a number that changes whenever a file comes or goes."""
        with suppress(*ABSENT):
            return self._folder.stat().st_mtime_ns
        return 0

    def names(self) -> set[str]:
        """Return the names of all files (`file_name`); none from a directory that another user could have written."""
        with suppress(*ABSENT):
            _refuse(self._directory, self._folder)
            with os.scandir(self._folder) as entries:
                return {entry.name for entry in entries}
        return set()

    def touch(self, pool: int, name: bytes) -> None:
        """Make a page the latest to be removed, if it is there."""
        with suppress(FileNotFoundError):
            os.utime(self._path(pool, name))

    def remove(self, pool: int, name: bytes) -> None:
        """Remove a page, if it is there and can be removed."""
        with suppress(OSError):
            self._path(pool, name).unlink()

    def write(self, key: PageKey, data: memoryview) -> bool:
        """Write a page, after least recently used ones were removed; returns whether it is there now."""
        head = self._head(key, len(data))
        mark = sha256(head)
        mark.update(data)
        size = len(head) + len(data) + HASH_BYTES
        if size > self._limit:
            return False
        path, unfinished = self._path(key.pool, key.name), self._directory / "unfinished"
        with locked(self._directory) as lock:
            self._make_folder()
            if path.exists():
                os.utime(path)
                return True
            self._reserve(lock, size)
            unfinished.unlink(missing_ok=True)
            try:
                with open(unfinished, "xb", opener=_careful) as file:
                    file.writelines((head, data, mark.digest()))
                unfinished.rename(path)
            except OSError:  # such as a full disk
                with suppress(OSError):
                    unfinished.unlink()
                raise
        return True

    def read(self, key: PageKey, n_bytes: int) -> memoryview | None:
        """Return the bytes of a page; None if there is none. Removes what is no file, and a file of other bytes."""
        path = self._path(key.pool, key.name)
        try:
            if stat.S_ISREG(path.lstat().st_mode):
                data = _checked(path, self._head(key, n_bytes), n_bytes)
                if data is not None:
                    return data
        except ABSENT:
            return None
        self.n_damaged += 1
        self.remove(key.pool, key.name)
        return None

    def _path(self, pool: int, name: bytes) -> Path:
        return self._folder / file_name(pool, name)

    def _head(self, key: PageKey, n_bytes: int) -> bytes:
        sizes = HEAD.pack(MAGIC, FORMAT, key.pool, len(key.parent), len(key.content), n_bytes)
        head = sizes + self._fingerprint + key.parent + key.content
        return head + bytes(-len(head) % ALIGNMENT)

    def _make_folder(self) -> None:
        with suppress(FileExistsError):
            self._folder.mkdir(0o700)
            with open(self._folder / "about", "w", opener=_careful) as file:
                file.write(self._about)
        if self._folder.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        _refuse(self._folder)

    def _reserve(self, lock: int, size: int) -> None:
        """Add `size` to the bytes in use. Files are removed if they would be more than the bound."""
        text = os.pread(lock, 32, 0)
        used = int(text) if text.isdigit() else self._limit
        if used + size > self._limit:
            used = remove_oldest(self._directory, self._limit, size)
        os.pwrite(lock, b"%020d" % (used + size), 0)


def file_name(pool: int, name: bytes) -> str:
    return f"{name.hex()}-{pool}{SUFFIX}"


class PageFile(NamedTuple):
    """A file of a page, when it was last used, and its bytes."""

    used: int
    n_bytes: int
    path: str


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    """Hold the lock of a directory, which is made if it is missing. Yields the lock's descriptor. Raises OSError."""
    directory.mkdir(0o700, parents=True, exist_ok=True)
    path = directory / "lock"
    lock = _careful(str(path), os.O_RDWR | os.O_CREAT)
    try:
        _refuse(directory, path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)  # which releases it


def folders(directory: Path) -> list[Path]:
    """Return the folders of fingerprints in a directory."""
    with os.scandir(directory) as entries:
        found = [entry for entry in entries if FOLDER.fullmatch(entry.name)]
        return [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]


def page_files(folder: Path) -> Iterator[PageFile]:
    """Yield the pages in a folder. Files that go meanwhile are left out."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield PageFile(status.st_mtime_ns, status.st_size, entry.path)


def remove_oldest(directory: Path, limit: int, size: int) -> int:
    """Remove the least recently used pages until `size` more bytes fit, and some; returns the bytes that are left.

    Nothing is removed if they fit. The caller holds the lock.
    """
    found = sorted(file for folder in folders(directory) for file in page_files(folder))
    used = sum(file.n_bytes for file in found)
    if used + size <= limit:
        return used
    for file in found:
        if used + size <= limit and used <= LEFT * limit:
            break
        with suppress(FileNotFoundError):
            Path(file.path).unlink()
        used -= file.n_bytes
    return used


def _refuse(*paths: Path) -> None:
    """Raise PermissionError if another user may change one of these."""
    if (problem := problem_of(*paths)) is not None:
        raise PermissionError(problem)


def _checked(path: Path, head: bytes, n_bytes: int) -> memoryview | None:
    """Read a page from its file, and note its use; returns None if the file has other bytes. Raises OSError."""
    end = len(head) + n_bytes
    size = end + HASH_BYTES
    whole = memoryview(bytearray(size + 1))  # a file with more bytes than a page is wrong, too
    with open(path, "rb", opener=_careful) as file:
        n_read = file.readinto(whole)
        if n_read != size or whole[: len(head)] != head or sha256(whole[:end]).digest() != whole[end:size]:
            return None
        with suppress(OSError):  # a directory that cannot be written
            os.utime(file.fileno())
    return whole[len(head) : end]


def _careful(path: str, flags: int) -> int:
    """Open a file that only its owner may read; neither what a link leads to, nor a pipe that nobody uses."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
