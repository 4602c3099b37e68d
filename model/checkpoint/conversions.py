"""Directories of converted models: built once, written atomically, checked before every use, rebuilt when damaged.

Each has a manifest with the fingerprints of its files. The builder holds a lock: if two processes need the same
directory, only one converts. The finished directory is renamed into place: no process reads an unfinished one. Whatever
else has the name of a directory, such as a file or a dangling link, is replaced by it.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from model.checkpoint.files import fingerprint
from model.errors import ModelError, one_line

MANIFEST = "noria.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors for want of space."""


def conversions_folder(cache_dir: Path | None) -> Path:
    """`cache_dir`, else `$XDG_CACHE_HOME/noria`, else `~/.cache/noria`. Raises ModelError for a user without a home."""
    try:
        if cache_dir is not None:
            return cache_dir.expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "noria"
    except RuntimeError as error:
        raise ModelError(f"there is no folder for converted models: {error}; name one with --cache-dir") from error


def built(entry: Path, build: Callable[[Path], None]) -> Path:
    """The directory `entry`, built by `build(directory)` if it is missing or damaged.

    Raises ModelError if it cannot be written, and whatever `build` raises.
    """
    lock = entry.with_name(f".{entry.name}.lock")
    if intact(entry):
        with suppress(OSError):  # left by a process that was killed
            lock.unlink()
        return entry
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _locked(lock):
            if not intact(entry):
                _rebuild(entry, build)
    except OSError as error:
        remedy = "free disk space, or choose" if error.errno in FULL else "choose"
        raise ModelError(
            f"the converted model cannot be written: {one_line(error)} ({entry.parent}); "
            f"{remedy} another directory with --cache-dir"
        ) from error
    return entry


def intact(entry: Path) -> bool:
    """Whether every file of the directory is as it was written."""
    try:
        manifest = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest) and all(fingerprint(entry / name) == print_ for name, print_ in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def _rebuild(entry: Path, build: Callable[[Path], None]) -> None:
    partial = entry.with_name(f".{entry.name}.partial")
    _remove(partial)  # left by a killed process: nobody else holds the lock
    partial.mkdir()
    try:
        build(partial)
        manifest = {path.name: fingerprint(path) for path in sorted(partial.iterdir())}
        (partial / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        _remove(entry)
        partial.rename(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove(path: Path) -> None:
    """Remove whatever has this name, if anything has."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock is the file of this name, and is removed at the end. Who has waited for a removed file begins again."""
    while True:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
