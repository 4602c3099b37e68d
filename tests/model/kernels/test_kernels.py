"""The compiled kernels, every variant this processor runs, against integer arithmetic and against themselves."""

import ctypes
import re
import struct

import numpy as np
import pytest
import torch
from torch import Tensor

from model.errors import NoriaError, OptionError
from model.kernels.cpu import native
from model.kernels.cpu import records as structs
from model.kernels.cpu.build import library
from model.kernels.cpu.functions import Kernels
from model.step.logits import PENALTIES
from tests.model import records


def weights(n_out: int, n_in: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-127, 128, (n_out, n_in), dtype=torch.int8, generator=generator)
    return weight, torch.rand(n_out, generator=generator) / 100


def exact(x: Tensor, weight: Tensor, scales: Tensor) -> np.ndarray:
    """Quantize x by rows and groups of 64, multiply in int64, add groups in float64."""
    rows = x.numpy()
    total = np.zeros((len(rows), len(weight)))
    for first in range(0, rows.shape[1], 64):
        part = rows[:, first : first + 64]
        greatest = np.abs(part).max(axis=1, keepdims=True)
        inverse = np.divide(np.float32(127), greatest, out=np.zeros_like(greatest), where=greatest > 0)
        products = np.rint(part * inverse).astype(np.int64) @ weight[:, first : first + 64].numpy().astype(np.int64).T
        total += products * (greatest.astype(np.float64) / 127)
    return total * scales.numpy()


@pytest.mark.parametrize(("n_out", "n_in"), [(16, 64), (48, 576), (1, 3), (17, 65), (200, 130), (576, 1536)])
@pytest.mark.parametrize("n_rows", [1, 5])
def test_products_are_those_of_integers(kernels: Kernels, n_out: int, n_in: int, n_rows: int) -> None:
    weight, scales = weights(n_out, n_in)
    x = torch.randn(n_rows, n_in)
    x[0, : min(64, n_in)] = 0
    found = kernels.linear(records.int8(weight, scales), x).numpy()
    expected = exact(x, weight, scales)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_extreme_bytes_do_not_saturate(kernels: Kernels) -> None:
    weight = torch.tensor([[127] * 128, [-127] * 128, [127, -127] * 64], dtype=torch.int8)
    for x in (torch.ones(1, 128), -torch.ones(1, 128), torch.tensor([[1.0, -1.0] * 64])):
        found = kernels.linear(records.int8(weight, torch.ones(3)), x)
        torch.testing.assert_close(found, x @ weight.float().T, rtol=1e-6, atol=0)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_threads_do_not_change_bits(kernels: Kernels, n_threads: int) -> None:
    packed, x = records.int8(*weights(1040, 192)), torch.randn(70, 192)
    expected = kernels.linear(packed, x)
    before = native.use_threads(2)
    try:
        assert native.use_threads(n_threads) == n_threads
        assert all(torch.equal(kernels.linear(packed, x), expected) for _ in range(50))
    finally:
        native.use_threads(before)


def test_wrong_shapes_are_refused(kernels: Kernels) -> None:
    packed = records.int8(*weights(16, 64))
    with pytest.raises(ValueError, match="expected rows of 64 values"):
        kernels.linear(packed, torch.zeros(1, 65))
    with pytest.raises(ValueError, match="cannot add"):
        kernels.linear(packed, torch.zeros(2, 64), onto=torch.zeros(1, 16))
    with pytest.raises(ValueError, match="expected a norm of 64 values"):
        kernels.linear(packed, torch.zeros(2, 64), norm=torch.ones(63))


# Choice


def test_variable_names_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORIA_KERNELS", "torch")
    assert native.kernels() is None
    monkeypatch.setenv("NORIA_KERNELS", "baseline")
    chosen = native.kernels()
    assert chosen is not None
    assert native.describe(chosen) == "native baseline"
    monkeypatch.setenv("NORIA_KERNELS", "sse9")
    with pytest.raises(OptionError, match=r"NORIA_KERNELS=sse9 is not there, choose one of: .*baseline, torch"):
        native.kernels()


@pytest.mark.skipif(native.kernels() is None, reason="needs the compiled library")
def test_threads_of_the_process_hold_no_memory_of_the_kernels() -> None:
    """Every thread would have the library's thread-local storage: once 2.15 MiB. Its program header has type 7."""
    elf = library().read_bytes()
    first, size, n = struct.unpack_from("<32xQ14xHH", elf)
    headers = [struct.unpack_from("<II6Q", elf, first + i * size) for i in range(n)]
    assert sum(in_memory for kind, _, _, _, _, _, in_memory, _ in headers if kind == 7) < 1024


# What Python reads in the library


def test_structs_are_those_of_the_headers() -> None:
    """In the order of the declaration; another name is an error."""
    weights = [(name, kind) for name, kind, *_ in structs.struct("weights")._fields_]
    assert weights[:3] == [("packed", ctypes.c_void_p), ("scales", ctypes.c_void_p), ("n_out", ctypes.c_int64)]
    penalties = ("ids", "outputs", "n_ids", *PENALTIES)
    assert structs.sampling().names == (*penalties, "temperature", "min_p", "top_p", "top_k", "start", "step")
    assert structs.sampling()["top_k"] == np.int32
    with pytest.raises(AttributeError, match="no_field"):
        structs.struct("weights")(no_field=1)


@pytest.mark.parametrize(
    ("group", "name", "there"),
    [
        ("formats", "q4", 3),
        ("inputs", "GATED", 2),
        ("packing", "SUPERBLOCK_BYTES", 144),
        ("floats", "bfloat16", 2),
        ("cells", "int8", 2),
        ("limits", "PAGE_SIZE", 32),
        ("samples", "NOT_FINITE", -2),
        ("targets", "w13", 2),
        ("adapters", "RANKS", 8),
    ],
)
@pytest.mark.skipif(native.kernels() is None, reason="needs the compiled library")
def test_a_number_that_differs_is_an_error(monkeypatch: pytest.MonkeyPatch, group: str, name: str, there: int) -> None:
    """Another value, one that C does not have, or one that Python does not."""
    right = dict(structs.CONSTANTS[group])
    assert right[name] == there
    for wrong in (
        {**right, name: there + 1},
        {**right, "more": 9},
        {other: right[other] for other in right if other != name},
    ):
        monkeypatch.setattr(structs, "CONSTANTS", {**structs.CONSTANTS, group: wrong})
        with pytest.raises(
            NoriaError, match=re.escape(f"{group} of the compiled kernels are {right} in C and {wrong}")
        ):
            native._library.__wrapped__()
