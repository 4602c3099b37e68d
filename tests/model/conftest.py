"""Shared by the tests of the model: the CPU kernels in every variant, and the product of Triton's interpreter."""

import ctypes
import fcntl
import hashlib
import subprocess
from pathlib import Path

import pytest

from model.kernels.cpu import build, native
from model.kernels.cpu.functions import Kernels
from tests.model.kernels.interpreter import product_in_order

__all__ = ["kernels", "product_in_order"]

TILES = Path(__file__).parent / "kernels/tiles.h"


@pytest.fixture(params=native.available() or native.LEVELS[:1])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Each variant that this processor runs."""
    return native.variant(request.param)


@pytest.fixture(scope="session")
def emulated(request: pytest.FixtureRequest) -> Kernels:
    """The kernels for AMX with its instructions in plain C, among vectors of AVX-512. One compilation serves until
    a source changes, and all processes that test."""
    if "avx512vnni" not in native.available():
        pytest.skip("this processor has no AVX-512 VNNI, which surrounds the tiles")
    own = hashlib.sha256(TILES.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]
    target = request.config.cache.mkdir("emulated") / f"{build.fingerprint()}-{own}.so"
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            compile_emulated(target.with_suffix(".new"))
            target.with_suffix(".new").rename(target)
    return Kernels(ctypes.CDLL(str(target)), "emulated")


def compile_emulated(target: Path) -> None:
    names = ("-DVARIANT=emulated", f'-DEMULATED_TILES="{TILES}"', '-DFINGERPRINT=""')
    flags = [*build.FLAGS, build.INCLUDE, *build.variants()["avx512vnni"], *names, "-O1"]  # the last level counts
    sources = [str(build.HERE / name) for name in (*build.SOURCES, "pool.c")]
    subprocess.run([*(build.compiler() or []), *flags, "-shared", *sources, "-o", str(target), "-lm"], check=True)
