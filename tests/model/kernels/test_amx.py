"""The path for AMX with its four instructions emulated in plain C: the bits are those of AVX-512."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from model.kernels.cpu import build, native
from model.kernels.cpu.functions import ARGUMENTS, Kernels
from model.kernels.cpu.packed import bfloat16
from tests.model import records
from tests.model.records import KINDS, random_blocks


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    if "avx512vnni" not in native.available():
        pytest.skip("this processor has no AVX-512 VNNI, which surrounds the tiles")
    target = tmp_path_factory.mktemp("tiles") / "emulated.so"
    flags = [
        *build.FLAGS,
        build.INCLUDE,
        *build.variants()["avx512vnni"],
        "-DVARIANT=emulated",
        "-DEMULATED_TILES",
        '-DFINGERPRINT=""',
    ]
    sources = [str(build.HERE / name) for name in ("linear/linear.c", "pool.c")]
    subprocess.run([*(build.compiler() or []), *flags, "-shared", *sources, "-o", str(target), "-lm"], check=True)
    return Kernels("emulated", _function(target), None, None, None, None, None)


def _function(library: Path) -> object:
    function = ctypes.CDLL(str(library)).linear_emulated
    function.argtypes, function.restype = ARGUMENTS["linear"], None
    return function


@pytest.mark.parametrize("kind", ["int8", "bfloat16", *KINDS])
@pytest.mark.parametrize("n_rows", [16, 33, 150])
def test_tiles_give_the_bits_of_vectors(emulated: Kernels, kind: str, n_rows: int) -> None:
    if kind == "int8":
        weight = torch.randint(-127, 128, (72, 200), dtype=torch.int8)
        packed = records.int8(weight, torch.rand(72))
    elif kind == "bfloat16":  # not by tiles
        packed = bfloat16(72, 200)
        native.variant("avx512vnni").quantize(packed, 0, torch.randn(72, 200))
    else:
        packed = records.packed(native.variant("avx512vnni"), *random_blocks(kind, 72, 6))
    x = torch.randn(n_rows, packed.n_in)
    assert torch.equal(emulated.linear(packed, x), native.variant("avx512vnni").linear(packed, x))
