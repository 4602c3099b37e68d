"""Servers whose kernels other compilers made: the wheel's, one of an emulated AMX machine, one that makes mistakes."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.machines.serving import ANSWER, ROOT, SERVE, own_shell, served

PACKAGES = ("model", "service")
WITHOUT = shutil.ignore_patterns("__pycache__", "*.so")
NO_COMPILER = {"PATH": "", "CC": ""}
MISTAKE = "memcpy(&four, x + r * stride + q * 4, 4);"
"""A line of the product with bytes, after which a mistake in it is as wrong in any tile."""

Copy = Callable[..., Path]


def compiler(kind: str) -> str:
    return f"{sys.executable} {ROOT / 'tests/machines/emulating.py'} {kind}"


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy of the packages in a folder of their own, `changed` by hand, with kernels built in it by `environment`."""

    def made(environment: Mapping[str, str], changed: Callable[[Path], None] = lambda _: None) -> Path:
        for name in PACKAGES:
            shutil.copytree(ROOT / name, tmp_path / name, ignore=WITHOUT)
        changed(tmp_path)
        command = [sys.executable, "-m", "model.kernels.cpu.build"]
        done = subprocess.run(
            command, cwd=tmp_path, env=own_shell() | dict(environment), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return tmp_path

    return made


def test_the_compiler_that_comes_as_a_wheel(copy: Copy, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All variants, and the same answer, where the system has no compiler."""
    wheel = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", "constraints.txt"]
    subprocess.run([*pip, "--target", wheel, "ziglang"], cwd=ROOT, check=True)
    environment = {"PYTHONPATH": str(wheel), **NO_COMPILER}
    with served(SERVE, environment, copy(environment)) as server:
        assert server.answer() == ANSWER
        assert server.version()["engine"]["kernels"].startswith("native")


@pytest.mark.parametrize("layout", [None, "INT8", "Q8", "Q4_K"])
def test_the_next_variant_serves_where_one_is_wrong(copy: Copy, layout: str | None) -> None:
    """Here avx2 and baseline stand for any two: the compiler knows no others, and `layout` is wrong in avx2."""

    def break_it(folder: Path) -> None:
        tiles = folder / "model/kernels/cpu/linear/tiles.h"
        text = tiles.read_text()
        assert text.count(MISTAKE) == 1
        tiles.write_text(
            text.replace(MISTAKE, f"{MISTAKE} if (WIDTH == 32 && FORMAT == {layout} && q == 3) four ^= 1;")
        )

    folder = copy({"CC": compiler("older")}, break_it if layout else lambda _: None)
    with served(SERVE, cwd=folder) as server:
        assert server.answer() == ANSWER
        engine = server.version()["engine"]
        if layout:
            assert engine["kernels"] == "native baseline"
            assert (
                engine["kernels_reason"]
                == f"the best of avx2, baseline; avx2 differs from baseline in {layout.lower()}"
            )
            assert "baseline serves instead" in server.log.read_text()
        else:
            assert engine["kernels"] == "native avx2"
            assert engine["kernels_reason"] == "the best of avx2, baseline; avx2 agrees with baseline"


@pytest.mark.parametrize("quantize", ["auto", "int4", "none"])
def test_a_processor_with_amx(copy: Copy, quantize: str) -> None:
    """Its check and its products run as on that processor. Only the instructions are those of AVX2."""
    folder = copy({"CC": compiler("amx")})
    with served((*SERVE, "--quantize", quantize, "--dtype", "bfloat16"), cwd=folder) as server:
        engine = server.version()["engine"]
        assert engine["kernels"] == "native amx"
        assert "amx agrees with avx512bf16" in engine["kernels_reason"]
        assert server.answer() == ANSWER
