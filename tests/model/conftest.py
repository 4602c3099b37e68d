"""Shared by the tests of the model: the CPU kernels in every variant, and the product of Triton's interpreter."""

import ctypes
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
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The kernels for AMX with its instructions in plain C, among vectors of AVX-512."""
    if "avx512vnni" not in native.available():
        pytest.skip("this processor has no AVX-512 VNNI, which surrounds the tiles")
    target = tmp_path_factory.mktemp("tiles") / "emulated.so"
    flags = [
        *(
            *build.FLAGS,
            build.INCLUDE,
            *build.variants()["avx512vnni"],
            "-DVARIANT=emulated",
            f'-DEMULATED_TILES="{TILES}"',
        ),
        *("-O1", '-DFINGERPRINT=""'),  # the last level counts
    ]
    sources = [str(build.HERE / name) for name in (*build.SOURCES, "pool.c")]
    subprocess.run([*(build.compiler() or []), *flags, "-shared", *sources, "-o", str(target), "-lm"], check=True)
    return Kernels(ctypes.CDLL(str(target)), "emulated")
