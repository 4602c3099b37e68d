"""What other users could change: by its owner, by its mode, and by a link to it."""

import os
from pathlib import Path

import pytest

from model.machine.owners import problem_of
from tests.owners import OTHER, give_away


def test_what_is_ours_or_roots_is_right(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o600)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert problem_of(Path("/"), *tmp_path.iterdir(), tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_may_write_to_is_named_with_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    expected = f"mode 0{mode:o} of {path} lets other users write to it; chmod go-w it, or choose another place"
    assert problem_of(path) == expected
    (tmp_path / "link").symlink_to("file")
    assert problem_of(tmp_path / "link") == expected.replace("/file", "/link")


def test_a_directory_for_all_needs_the_sticky_bit(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert (
        problem_of(tmp_path)
        == f"mode 0777 of {tmp_path} lets other users write to it; chmod go-w it, or choose another place"
    )
    tmp_path.chmod(0o1777)
    assert problem_of(tmp_path) is None
    file = tmp_path / "file"
    file.touch()
    file.chmod(0o1666)
    assert problem_of(file) is not None, "the bit means nothing for a file"


@pytest.mark.parametrize("kind", ["file", "directory", "link", "target"])
def test_what_belongs_to_another_user_is_named_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    file, link, directory = tmp_path / "file", tmp_path / "link", tmp_path / "directory"
    file.touch(0o600)
    directory.mkdir(0o700)
    link.symlink_to("file")
    given, checked = {
        "file": (file, file),
        "directory": (directory, directory),
        "link": (link, link),
        "target": (file, link),
    }[kind]
    give_away(given, monkeypatch)
    problem = problem_of(checked)
    assert problem is not None
    assert f"owns {checked}, this is user {os.geteuid()}; chown it, or choose another place" in problem
    assert str(OTHER) in problem
