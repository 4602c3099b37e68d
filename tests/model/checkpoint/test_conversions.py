"""The cache of converted models where the disk is full, or holds something else under an entry's name."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model.checkpoint.conversions import built, conversions_folder
from model.checkpoint.resolve import resolve
from model.errors import ModelError
from tests.model.checkpoint.gguf_files import converted, new_file, write
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[3]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write(new_file(tmp_path / "Small.gguf"))
    return tmp_path / "Small.gguf"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def no_large_files(small: Path) -> Iterator[None]:
    """Files may have 100 bytes: the write beyond that fails as on a full disk, with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("no_large_files")
def test_a_disk_that_is_full_is_one_line_and_leaves_nothing(small: Path) -> None:
    with pytest.raises(ModelError) as caught:
        converted(small)
    assert str(caught.value) == (
        f"the converted model cannot be written: File too large ({small.parent / 'cache'}); "
        "free disk space, or choose another directory with --cache-dir"
    )
    assert names(small.parent / "cache") == []


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "; free disk space, or choose another directory with --cache-dir"),
        (errno.EDQUOT, "; free disk space, or choose another directory with --cache-dir"),
        (errno.EROFS, "; choose another directory with --cache-dir"),
        (errno.EACCES, "; choose another directory with --cache-dir"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "gguf.json", "noria.json"])
def test_a_write_that_fails_says_what_to_do(
    small: Path, name: str, number: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = Path.write_text

    def failing(path: Path, text: str, **options: Any) -> int:
        if path.name != name:
            return really(path, text, **options)
        really(path, text[: len(text) // 2], **options)
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", failing)
        with pytest.raises(ModelError) as caught:
            converted(small)
    folder = small.parent / "cache"
    assert str(caught.value) == f"the converted model cannot be written: {os.strerror(number)} ({folder}){remedy}"
    assert names(folder) == []
    assert converted(small).is_dir()


def test_the_command_ends_with_one_line(small: Path) -> None:
    """The whole command, in which no byte may be written to a file."""
    command = [
        sys.executable,
        "-m",
        "service",
        "serve",
        str(small),
        "--port",
        "0",
        "--cache-dir",
        str(small.parent / "c"),
    ]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("noria: the converted model cannot be written: File too large")
    assert "Traceback" not in done.stderr
    assert names(small.parent / "c") == []


def a_file(path: Path) -> None:
    path.write_text("not a directory")


def a_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def a_link_to_a_folder(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to("elsewhere")


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "inner").mkdir()


WRONG = [a_file, a_dangling_link, a_link_to_a_folder, a_folder]


@pytest.mark.parametrize("place", WRONG)
@pytest.mark.parametrize("name", ["{}", ".{}.partial"])
def test_what_is_no_entry_is_replaced(small: Path, name: str, place: Any) -> None:
    entry = converted(small)
    good = {path.name: path.read_bytes() for path in entry.iterdir()}
    entry.rename(small.parent / "aside")
    place(entry.with_name(name.format(entry.name)))
    assert converted(small) == entry
    assert {path.name: path.read_bytes() for path in entry.iterdir()} == good
    assert not entry.is_symlink()
    assert [left for left in names(entry.parent) if left != "elsewhere"] == [entry.name]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_an_entry_that_cannot_be_read_nor_replaced_is_one_line(
    small: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = converted(small)

    def refused(path: Path, *more: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "read_text", refused)
    monkeypatch.setattr("shutil.rmtree", lambda path, ignore_errors=False: None if ignore_errors else refused(path))
    with pytest.raises(ModelError, match=rf"cannot be written: {os.strerror(number)} \(.*; choose another directory"):
        converted(small)
    assert entry.is_dir()


def test_no_lock_is_left(small: Path) -> None:
    """Nor one of a process that was killed after its work, nor one of a build that failed."""
    entry = converted(small)
    lock = entry.with_name(f".{entry.name}.lock")
    assert names(entry.parent) == [entry.name]
    lock.touch()
    assert converted(small) == entry
    assert names(entry.parent) == [entry.name]
    (entry / "config.json").unlink()
    lock.touch()
    with pytest.raises(ZeroDivisionError):
        built(entry, lambda directory: print(1 // 0))
    assert names(entry.parent) == [entry.name]


def test_who_waited_for_a_lock_that_was_removed_locks_again(tmp_path: Path) -> None:
    """One builder holds the lock, a second waits for it, and a third comes right after the first has removed it."""
    built_by_second: list[Path] = []
    second = threading.Thread(target=built, args=[tmp_path / "entry", built_by_second.append])
    lock = tmp_path / ".entry.lock"
    with lock.open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second.start()
        eventually(lambda: waits_for(first), "the second waits for the first")
        lock.unlink()
        with lock.open("w") as third:
            fcntl.flock(third, fcntl.LOCK_EX)
            fcntl.flock(first, fcntl.LOCK_UN)
            eventually(lambda: waits_for(third), "the second waits for the third")
            assert not built_by_second
    second.join(PATIENCE)
    assert len(built_by_second) == 1
    assert names(tmp_path) == ["entry"]


def waits_for(file: Any) -> bool:
    """Whether anybody waits for the lock of this file, as Linux tells it."""
    inode = str(os.fstat(file.fileno()).st_ino)
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{inode} " in line for line in lines)


def test_a_user_without_a_home_names_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", nobody)
    with pytest.raises(ModelError, match=r"there is no folder for converted models: .*; name one with --cache-dir"):
        conversions_folder(None)


@pytest.mark.parametrize("name", ["x" * 300, "~no-such-user/model", f"{'d' * 300}/m.gguf"])
def test_a_path_that_cannot_be_looked_up_is_one_line(name: str) -> None:
    with pytest.raises(ModelError, match=r"there is no model at '.*: .*"):
        resolve(name)
