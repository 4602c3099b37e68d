"""Servers whose kernels other compilers made: the wheel's, one of an emulated AMX machine, one that makes mistakes."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from model.kernels.cpu.native import available
from tests.machines.serving import ANSWER, ROOT, SERVE, own_shell, served

WITHOUT = shutil.ignore_patterns("__pycache__", "*.so")
NO_COMPILER = {"PATH": "", "CC": ""}
MISTAKE = "memcpy(&four, x + r * stride + q * 4, 4);"
"""Where a product of bytes reads four of them: a change of these is a mistake in every tile."""
GAIN = "LEAST_GAIN = 1.2"
"""Which gain decides whether AMX serves."""
SLOW = 400.0
"""Seconds of patience: emulated, a prompt of 37 tokens takes 7 s of a core."""


def compiler(kind: str) -> dict[str, str]:
    return {"CC": f"{sys.executable} {ROOT / 'tests/machines/emulating.py'} {kind}"}


def copy(folder: Path, environment: Mapping[str, str], changed: Callable[[Path], None] = lambda kernels: None) -> Path:
    """Noria in a folder of its own, `changed` by hand, with kernels that the compiler of `environment` built."""
    for name in ("model", "service"):
        shutil.copytree(ROOT / name, folder / name, ignore=WITHOUT)
    changed(folder / "model/kernels/cpu")
    command = [sys.executable, "-m", "model.kernels.cpu.build"]
    environment = own_shell() | dict(environment)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_compiler_that_comes_as_a_wheel(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It makes the best variant of this processor, where the system has no compiler."""
    wheel = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", "constraints.txt"]
    subprocess.run([*pip, "--target", wheel, "ziglang"], cwd=ROOT, check=True)
    folder = copy(tmp_path, {**NO_COMPILER, "PYTHONPATH": str(wheel)})
    with served(SERVE, NO_COMPILER, folder) as server:
        assert server.answer() == ANSWER
        assert server.version()["engine"]["kernels"] == f"native {available()[0]}"


def test_avx2_serves_where_it_agrees_with_the_next_variant(tmp_path: Path) -> None:
    with served(SERVE, cwd=copy(tmp_path, compiler("older"))) as server:
        assert server.answer() == ANSWER
        engine = server.version()["engine"]
        assert engine["kernels"] == "native avx2"
        assert engine["kernels_reason"] == "the best of avx2, baseline; avx2 agrees with baseline"


@pytest.mark.parametrize("layout", ["Q4_MIN", "Q4_K"])
def test_the_next_variant_serves_where_avx2_is_wrong(tmp_path: Path, layout: str) -> None:
    """In one layout alone: that of the embedded model, and another. The two variants stand for any."""

    def mistaken(kernels: Path) -> None:
        tiles = kernels / "linear/tiles.h"
        text = tiles.read_text()
        assert text.count(MISTAKE) == 1
        tiles.write_text(
            text.replace(MISTAKE, f"{MISTAKE} if (WIDTH == 32 && FORMAT == {layout} && q == 3) four ^= 1;")
        )

    with served(SERVE, cwd=copy(tmp_path, compiler("older"), mistaken)) as server:
        assert server.answer() == ANSWER
        engine, differs = server.version()["engine"], f"avx2 differs from baseline in {layout.lower()}"
        assert engine["kernels"] == "native baseline"
        assert engine["kernels_reason"] == f"the best of avx2, baseline; {differs}"
        assert f"kernels: {differs}; baseline serves instead" in server.log.read_text()


@pytest.fixture(scope="module")
def with_amx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy(tmp_path_factory.mktemp("amx"), compiler("amx"))


@pytest.mark.parametrize("quantize", ["auto", "int8", "none"])
def test_a_processor_with_amx(with_amx: Path, quantize: str) -> None:
    """Its check and its products run as on that processor. Only the instructions are those of AVX2."""
    command = (*SERVE, "--quantize", quantize, "--dtype", "bfloat16")
    with served(command, {"NORIA_KERNELS": "amx"}, with_amx, SLOW) as server:
        engine = server.version()["engine"]
        assert engine["kernels"] == "native amx"
        assert engine["kernels_reason"].endswith("; amx agrees with avx512bf16")
        assert server.answer() == ANSWER


def test_amx_that_gains_too_little_does_not_serve(with_amx: Path, tmp_path: Path) -> None:
    """As under a hypervisor that emulates it. The bound is raised: our tiles are as fast as our AVX-512."""
    folder = tmp_path / "amx"
    shutil.copytree(with_amx, folder)
    check = folder / "model/kernels/cpu/check.py"
    text = check.read_text()
    assert text.count(GAIN) == 1
    check.write_text(text.replace(GAIN, "LEAST_GAIN = 100"))
    with served(SERVE, cwd=folder, patience=SLOW) as server:
        engine = server.version()["engine"]
        assert engine["kernels"] == "native avx512bf16"
        assert re.search(r"amx is \d\.\d\d times as fast as avx512bf16", engine["kernels_reason"])
        assert "avx512bf16 serves instead" in server.log.read_text()
        assert server.answer() == ANSWER


def own_tests(folder: Path, files: Sequence[str], environment: Mapping[str, str] = {}) -> None:
    """Run files of tests/model in a copy of Noria: all pass, and none is skipped."""
    for name in ("tests", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=WITHOUT)
    shutil.copy(ROOT / "pyproject.toml", folder)
    paths = [f"tests/model/{file}" for file in files]
    command = [sys.executable, "-m", "pytest", "-rs", "-k", "not hold_no_memory", *paths]
    variables = own_shell() | dict(environment)
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SKIPPED" not in done.stdout


def test_the_kernels_own_tests_with_amx(with_amx: Path) -> None:
    """Those of the order of additions, of outliers and of bits, of which no other processor runs all.

    Emulated tiles are memory of a thread.
    """
    files = [
        *("kernels/test_check.py", "kernels/test_kernels.py", "kernels/test_pairs.py", "linear/test_bfloat16.py"),
        *("attention/test_variants.py::test_variants_have_the_same_bits", "network/test_compiled.py"),
    ]
    own_tests(with_amx, files)


def test_the_kernels_own_tests_with_address_sanitizer(tmp_path: Path) -> None:
    """No access beyond a tensor, nor beyond an array of the memory that products, experts and a step divide."""
    folder = copy(tmp_path, compiler("sanitized"))
    gcc = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    files = ("kernels/mixed_experts", "kernels/fp4", "network/compiled", "network/latent", "network/lora")
    paths = [f"{name.replace('/', '/test_')}.py" for name in files]
    # Python itself never gives all its memory back.
    own_tests(folder, paths, {"LD_PRELOAD": gcc.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"})
