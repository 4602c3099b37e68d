"""The build with compilers that know less than gcc. A script stands for them: it makes empty files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from model.kernels.cpu import build, native

SCRIPT = """#!/bin/sh
case "$*" in
  *-fsyntax-only*) exit 1 ;;  # zig always makes an object
  *-dumpmachine*) echo "$MACHINE-linux-gnu"; exit ;;
esac
while [ $# -gt 1 ]; do
  case $1 in
    *.c) ! grep -q "$UNKNOWN" "$1" || { echo "no such instruction" >&2; exit 1; } ;;
    -o) : >"$2" ;;
  esac
  shift
done
"""
NONE = "these words are in no source"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "cc"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setenv("MACHINE", "x86_64")
    return tmp_path / "library.so"


@pytest.mark.parametrize(
    ("machine", "unknown", "missing"),
    [
        ("x86_64", NONE, ()),
        ("x86_64", "tdpbf16ps %tmm2", ("amx",)),
        ("x86_64", "probe(void)", tuple(build.PROBES)),
        ("aarch64", NONE, ()),
        ("aarch64", "usmmla", ("neon-i8mm",)),
    ],
)
def test_the_build_has_the_variants_that_become_objects(
    library: Path, monkeypatch: pytest.MonkeyPatch, machine: str, unknown: str, missing: tuple[str, ...]
) -> None:
    """Those of the compiler's architecture. It may know a flag, and its assembler not the instruction."""
    monkeypatch.setenv("MACHINE", machine)
    monkeypatch.setenv("UNKNOWN", unknown)
    assert build.build(library) == tuple(name for name in build.VARIANTS[machine] if name not in missing)
    assert library.exists()


def test_a_source_that_does_not_compile_is_an_error(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNKNOWN", "void noria_parallel")
    with pytest.raises(RuntimeError, match="no such instruction"):
        build.build(library)
    assert not library.exists()


def test_the_own_variant_is_first_and_the_others_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SOURCES", ("sample.c",))
    told = list[str]()
    names = build.build(tmp_path / "library.so", told.append)
    order = [native.available()[0], *(name for name in names if name != native.available()[0])]
    assert told == [f"{name} is compiled, {n} of {len(names)}" for n, name in enumerate(order, 1)]


def test_what_has_its_fingerprint_is_not_compiled_again(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sources and a variant that is missing are compiled. The script's libraries are empty."""
    monkeypatch.setenv("UNKNOWN", NONE)
    names = tuple(build.VARIANTS["x86_64"])
    words = [build.fingerprint(), *(f"linear_{build.suffix(name)}\0" for name in names)]
    for left_out in words:
        library.write_bytes("".join(words).replace(left_out, "").encode())
        assert build.build(library) == names
        assert not library.read_bytes(), left_out
    library.write_bytes("".join(words).encode())
    monkeypatch.setenv("UNKNOWN", "void noria_parallel")  # compiling would fail
    assert build.build(library) == names
    monkeypatch.delenv("CC")
    told = list[str]()
    build.build(build.library(), told.append)
    assert told == [], "the real library has these words, too"


def test_without_a_compiler_the_command_ends_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-m", "model.kernels.cpu.build"]  # -S: no wheels either
    done = subprocess.run(
        command, env={"PATH": str(tmp_path)}, cwd=build.HERE.parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "noria: no C compiler found; install gcc or clang, or `pip install ziglang`\n"


@pytest.mark.parametrize(
    ("build_line", "said"),
    [
        ("echo avx2 baseline", "noria: set-up: compiled for avx2, baseline"),
        ("echo noria: no C compiler >&2; exit 1", "noria: the CPU kernels are not compiled; PyTorch serves"),
    ],
)
def test_set_up_says_what_was_compiled(tmp_path: Path, build_line: str, said: str) -> None:
    """An environment whose Python does nothing but the build."""
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\ncase $* in *kernels.cpu.build*) {build_line} ;; esac\n")
    python.chmod(0o755)
    environment = {**os.environ, "ENVIRONMENT": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        ["scripts/setup"], env=environment, cwd=build.HERE.parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *_, compiled, last = done.stderr.splitlines()
    assert compiled.startswith(said)
    assert last.endswith(f'export PATH="{tmp_path}/bin:$PATH"')


def test_a_blank_compiler_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "  ")
    blank = build.compiler()
    monkeypatch.delenv("CC")
    assert blank == build.compiler()
