"""The file of chosen tiles: who reads it, and what a damaged one does."""

import json
from pathlib import Path

import pytest

from model.kernels.cpu.tuning.store import Store

PLACE = {"model name": "Some CPU", "stepping": "1", "L3 Unified": "32768K", "variant": "avx2", "threads": "2"}
TILES = {"int8 576x960": {"1": "1x4", "2": "default"}}


def written(folder: Path) -> Store:
    store = Store(folder, PLACE, "library")
    store.write(TILES)
    return store


def test_another_start_reads_what_one_has_written(tmp_path: Path) -> None:
    written(tmp_path / "new" / "folder")
    assert Store(tmp_path / "new" / "folder", dict(PLACE), "library").read() == TILES


@pytest.mark.parametrize("part", PLACE)
def test_another_place_has_a_file_of_its_own(part: str, tmp_path: Path) -> None:
    store = written(tmp_path)
    other = Store(tmp_path, PLACE | {part: "other"}, "library")
    assert other.read() == {}
    other.write({})
    assert store.read() == TILES


def test_another_library_overwrites_the_file(tmp_path: Path) -> None:
    store = written(tmp_path)
    other = Store(tmp_path, PLACE, "other library")
    assert other.read() == {}
    other.write({"q8 64x64": {"1": "1x1"}})
    assert (store.read(), other.read()) == ({}, {"q8 64x64": {"1": "1x1"}})
    assert len(list(tmp_path.iterdir())) == 1


BROKEN = [b"", b"\xff\xfe", b"[]", b"{}", b"null", b'{"tiles": 3}', b"[" * 100_000]


@pytest.mark.parametrize("content", BROKEN, ids=lambda content: repr(content[:20]))
def test_a_broken_file_is_no_file(content: bytes, tmp_path: Path) -> None:
    store = written(tmp_path)
    assert store.path is not None
    store.path.write_bytes(content)
    assert store.read() == {}
    store.write(TILES)
    assert store.read() == TILES


@pytest.mark.parametrize("tiles", [None, [1], {"int8 576x960": 7}, {"int8 576x960": [1]}], ids=repr)
def test_tiles_of_a_wrong_type_are_no_tiles(tiles: object, tmp_path: Path) -> None:
    store = written(tmp_path)
    assert store.path is not None
    store.path.write_text(json.dumps({"place": PLACE, "library": "library", "tiles": tiles}))
    assert store.read() == {}


def test_what_cannot_be_written_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    caplog.set_level("INFO")
    store = written(tmp_path / "file" / "folder")
    assert store.read() == {}
    assert [len(record.message.splitlines()) for record in caplog.records] == [1]


def test_a_directory_in_the_place_of_the_file_is_no_error(tmp_path: Path) -> None:
    store = Store(tmp_path, PLACE, "library")
    assert store.path is not None
    store.path.mkdir()
    store.write(TILES)
    assert store.read() == {}
    assert list(tmp_path.iterdir()) == [store.path]


def test_without_a_folder_nothing_is_kept() -> None:
    store = Store(None, PLACE, "library")
    store.write(TILES)
    assert store.read() == {}
