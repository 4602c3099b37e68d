"""The first command of the README in a fresh clone: set-up, kernels, conversion of the model, one answer."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from model.kernels.cpu.build import compiler
from tests.machines.environments import SITE
from tests.machines.serving import ANSWER, ROOT, refused, served


def cloned(folder: Path) -> Path:
    """What `git clone` makes of this working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.timeout(1800)
def test_a_path_with_spaces_and_umlauts(tmp_path: Path) -> None:
    """The packages of this environment count as installed; so the set-up downloads setuptools only."""
    clone = cloned(tmp_path / "Bäume und Wälder" / "noria (1)")
    subprocess.run([sys.executable, "-m", "venv", clone / ".venv"], check=True)
    (clone / ".venv" / SITE.relative_to(sys.prefix) / "outer.pth").write_text(f"{SITE}\n")
    home = {"HOME": str(clone / "mein Haus")}
    with served(["make", "serve", f"PYTHON={sys.executable}"], home, cwd=clone, patience=1200) as server:
        assert server.answer() == ANSWER
        assert server.version()["engine"]["kernels"].startswith("native")


@pytest.mark.timeout(7200)
def test_another_python(python: str, tmp_path: Path) -> None:
    """One that `--python` names, from nothing. PyPI's PyTorch brings 3 GB of libraries for GPUs."""
    clone = cloned(tmp_path / "noria")
    with served(["make", "serve", f"PYTHON={python}"], cwd=clone, patience=7000) as server:
        assert server.answer() == ANSWER


def test_musl_is_refused(tmp_path: Path) -> None:
    """No Python for musl is at hand. This one gets from confstr what musl's gives: an error (unistd.h has the name)."""
    source, library = tmp_path / "musl.c", tmp_path / "musl.so"
    source.write_text(
        "#include <errno.h>\nunsigned long confstr(int a, char *b, unsigned long c) { errno = EINVAL; return 0; }"
    )
    subprocess.run([*(compiler() or ()), "-shared", "-fPIC", "-fno-builtin", source, "-o", library], check=True)
    line = refused(
        ["scripts/setup"], {"LD_PRELOAD": str(library), "PYTHON": sys.executable, "ENVIRONMENT": str(tmp_path / "no")}
    )
    assert "runs on musl (as on Alpine), PyTorch on glibc only; use Debian" in line
    assert not (tmp_path / "no").exists()
