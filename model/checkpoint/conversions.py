"""Directories of converted models: built once, written atomically, checked before every use, rebuilt when damaged.

Each has a manifest with the fingerprints of its files. The builder holds a lock: if two processes need the same
directory, only one converts. The finished directory is renamed into place: no process reads an unfinished one.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from model.checkpoint.files import fingerprint
from model.errors import ModelError, one_line

MANIFEST = "noria.json"


def conversions_folder(cache_dir: Path | None) -> Path:
    """`cache_dir`, else `$XDG_CACHE_HOME/noria`, else `~/.cache/noria`."""
    if cache_dir is not None:
        return cache_dir.expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "noria"


def built(entry: Path, build: Callable[[Path], None]) -> Path:
    """The directory `entry`, built by `build(directory)` if it is missing or damaged.

    Raises ModelError if it cannot be written, and whatever `build` raises.
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
            f"the converted model cannot be written: {one_line(error)}; "
            "free disk space, or choose another directory with --cache-dir"
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
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process: nobody else holds the lock
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
