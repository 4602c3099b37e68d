"""The disk: a cache that is full, removed, or not what it should be."""

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.drill.processes import send
from tests.drill.row import MIB, LoneRow, NotPossible, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.target import Target

END_SECONDS = 60.0


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 256 kB at this folder."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        raise NotPossible("no small file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def refuses_to_start(target: Target, word: str) -> str:
    """Check that the server ends by itself with one line that has the word."""
    target.launch()
    deadline = time.monotonic() + END_SECONDS
    while target.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = [line for line in target.log.splitlines() if line.strip()]
    check(not target.alive(), f"it still runs after {END_SECONDS:g} s")
    check(target.server.process.returncode != 0, "exit code 0")
    check("Traceback" not in target.log, f"a traceback that ends in {lines[-1][:120]!r}")
    check(word in lines[-1].lower(), f"its last line does not say {word!r}: {lines[-1][:160]!r}")
    return lines[-1].replace(str(target.folder), "FOLDER")[:160]


def on(word: str, prepare: Callable[[Target], contextlib.AbstractContextManager[None]]) -> Callable[[], str]:
    """The action of starting a server after `prepare`."""

    def start() -> str:
        target = Target(cached=False)
        try:
            with prepare(target):
                return refuses_to_start(target, word)
        finally:
            target.close()

    return start


def file_size_limit() -> str:
    """Start under a limit of file sizes: the conversion cannot be written."""
    target = Target(wrapper=("prlimit", "--fsize=65536"), cached=False)
    try:
        return refuses_to_start(target, "large")
    finally:
        target.close()


def entry_is_a_file() -> str:
    """Replace the finished cache entry by a file of its name, and start again."""
    target = Target(cached=False)
    try:
        entry = first_entry(target)
        shutil.rmtree(entry)
        entry.write_text("not a folder")
        target.start()
        check(entry.is_dir(), "the entry is still a file")
        return "it is replaced, and the server serves"
    finally:
        target.close()


@contextlib.contextmanager
def cache_is_a_file(target: Target) -> Iterator[None]:
    target.cache.write_text("not a folder")
    yield


def first_entry(target: Target) -> Path:
    """The entry that a first server makes in the cache."""
    target.start()
    check(target.stop() == 0, "the first server did not end with exit code 0")
    return next(target.cache.rglob("config.json")).parent


def cache_removed(stage: Stage) -> str:
    """Remove the cache and kill the engine: the next one needs the cache again."""
    shutil.rmtree(stage.target.cache)
    send(stage.target.find("engine").pid, signal.SIGKILL)
    stage.mark()
    return ""


def no_locks_left(stage: Stage) -> str:
    left = [path.name for path in stage.target.cache.rglob("*.lock")]
    check(not left, f"{len(left)} lock files are left in the cache")
    return "none"


LINE = "it ends with one line that says why, exit code not 0"
ROWS = (
    # The service then loads the libraries that convert a model.
    Row("cache removed, engine killed", Promise(serves=20.0, memory=160 * MIB), cache_removed),
    Row("after a start", Promise("no lock file is left in the cache"), no_locks_left),
    LoneRow("disk full while the cache is written", LINE, on("space", lambda target: small_disk(target.cache))),
    LoneRow("files may have 64 kB at most while the cache is written", LINE, file_size_limit),
    LoneRow("a cache folder that is a file", LINE, on("", cache_is_a_file)),
    LoneRow("a cache entry that is a file", "the server replaces it and serves", entry_is_a_file),
)
