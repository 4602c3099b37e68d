"""Converted models on disk: built once, written atomically, checked before every use, rebuilt when damaged.

An entry is a directory with a manifest of its files' fingerprints. Builders hold a lock, so that two processes
convert once; the finished directory is renamed into place, so that nobody sees half of one.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from model.checkpoint.files import fingerprint
from model.errors import ModelError

MANIFEST = "noria.json"


def conversions_folder(cache_dir: Path | None) -> Path:
    """`cache_dir`, else `$XDG_CACHE_HOME/noria`, else `~/.cache/noria`."""
    if cache_dir is not None:
        return cache_dir.expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "noria"


def built(entry: Path, build: Callable[[Path], None]) -> Path:
    """The directory `entry`, built by `build(directory)` if it is missing or damaged.

    Raises ModelError when the cache cannot be written, and whatever `build` raises.
    """
    if intact(entry):
        return entry
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _locked(entry.with_name(f".{entry.name}.lock")):
            if not intact(entry):
                _rebuild(entry, build)
    except OSError as error:
        raise ModelError(
            f"cannot write the model cache: {error.strerror or error}; free space or choose another with --cache-dir"
        ) from error
    return entry


def intact(entry: Path) -> bool:
    """Whether every file of the entry is as it was written."""
    try:
        manifest = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest) and all(fingerprint(entry / name) == print_ for name, print_ in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def _rebuild(entry: Path, build: Callable[[Path], None]) -> None:
    partial = entry.with_name(f".{entry.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed: the lock says nobody owns it
    partial.mkdir()
    try:
        build(partial)
        manifest = {path.name: fingerprint(path) for path in sorted(partial.iterdir())}
        (partial / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        shutil.rmtree(entry, ignore_errors=True)
        partial.rename(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
