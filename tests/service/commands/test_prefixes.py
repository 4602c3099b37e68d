"""`noria prefixes` shows and removes the pages of a directory, and nothing else in it."""

import json
from pathlib import Path

from tests.engine.prefixes.pages import N_BYTES, OTHER_PRINT, PRINT, data, files, key, paths
from tests.service.command_line import noria


def filled(directory: Path) -> Path:
    for fingerprint, n_pages in ((PRINT, 3), (OTHER_PRINT, 1)):
        store = files(directory, fingerprint=fingerprint)
        for number in range(n_pages):
            store.write(key(number), data(number))
    (directory / "notes.txt").write_text("not a page")
    return directory


def test_the_list_has_a_row_for_each_fingerprint(tmp_path: Path) -> None:
    done = noria("prefixes", "--json", "--prefix-store", filled(tmp_path))
    rows = {row["fingerprint"]: (row["about"], row["pages"]) for row in json.loads(done.stdout)}
    assert rows == {PRINT: ("a model", 3), OTHER_PRINT: ("a model", 1)}
    table = noria("prefixes", "list", env={"NORIA_PREFIX_STORE": str(tmp_path)})
    assert table.returncode == 0
    assert "a model" in table.stdout


def test_a_clear_removes_pages_alone_and_a_server_goes_on(tmp_path: Path) -> None:
    store = files(filled(tmp_path))
    assert noria("prefixes", "clear", "--prefix-store", tmp_path, typed="n\n").returncode
    assert len(paths(tmp_path)) == 4
    done = noria("prefixes", "clear", "--yes", "--prefix-store", tmp_path)
    assert done.stdout.startswith("removed 4 pages")
    assert not paths(tmp_path)
    assert (tmp_path / "notes.txt").exists()
    assert store.write(key(9), data(9))
    assert store.read(key(9), N_BYTES) == data(9)


def test_no_variable_chooses_or_confirms_a_removal(tmp_path: Path) -> None:
    variables = {"NORIA_ACTION": "clear", "NORIA_YES": "1", "NORIA_PREFIX_STORE": str(filled(tmp_path))}
    assert noria("prefixes", env=variables).returncode == 0
    assert noria("prefixes", "clear", env=variables).returncode
    assert len(paths(tmp_path)) == 4


def test_flags_of_the_other_action_are_refused(tmp_path: Path) -> None:
    for words in (("list", "--yes"), ("clear", "--json", "--yes")):
        done = noria("prefixes", *words, "--prefix-store", filled(tmp_path))
        assert done.stderr == "noria: --yes is for noria prefixes clear, and --json for noria prefixes list\n"
    assert len(paths(tmp_path)) == 4


def test_one_page_is_no_pages(tmp_path: Path) -> None:
    files(tmp_path).write(key(1), data(1))
    done = noria("prefixes", "clear", "--prefix-store", tmp_path, typed="y\n")
    assert "Remove 1 page and free " in done.stdout
    assert "removed 1 page: " in done.stdout


def test_a_wrong_directory_is_one_line(tmp_path: Path) -> None:
    assert noria("prefixes").stderr.startswith("noria: noria prefixes needs --prefix-store DIR")
    done = noria("prefixes", "--prefix-store", tmp_path / "gone")
    assert (done.returncode, done.stderr) == (1, f"noria: --prefix-store {tmp_path}/gone: No such file or directory\n")
