"""The compiled kernels, every variant this processor runs, against integer arithmetic and against themselves."""

import ctypes
import re
import struct

import numpy as np
import pytest
import torch
from torch import Tensor

from model.errors import NoriaError, OptionError
from model.kernels.cpu import native, packed
from model.kernels.cpu import records as structs
from model.kernels.cpu.build import library
from model.kernels.cpu.functions import Kernels
from model.step.logits import PENALTIES
from tests.model import records


def weights(n_out: int, n_in: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-127, 128, (n_out, n_in), dtype=torch.int8, generator=generator)
    return weight, torch.rand(n_out, generator=generator) / 100


MEANS, GATED_MEANS = 5, 12
"""So many times the mean magnitude of a row becomes 127, without a gate and after it."""


def levels(x: np.ndarray, means: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as whole numbers, and the scale of each [n, 1]. Magnitudes are added in 64 lanes, in float32."""
    lanes = np.abs(np.pad(x, ((0, 0), (0, -x.shape[1] % 64)))).reshape(len(x), -1, 64)
    greatest, total = lanes.max(axis=(1, 2)), np.zeros((len(x), 64), np.float32)
    for part in lanes.transpose(1, 0, 2):
        total += part
    while total.shape[1] > 1:
        total = total[:, : total.shape[1] // 2] + total[:, total.shape[1] // 2 :]
    typical = np.float32(means) / np.float32(x.shape[1]) * total[:, 0]
    top = np.minimum(greatest, np.maximum(typical, greatest / np.float32(128)))[:, None]
    inverse = np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
    return np.rint(x * inverse).astype(np.int64), top.astype(np.float64) / 127


def exact(x: Tensor, weight: Tensor, scales: Tensor, means: int = MEANS) -> np.ndarray:
    """Make the rows whole numbers and multiply in int64."""
    whole, scale = levels(x.numpy(), means)
    return (whole @ weight.numpy().astype(np.int64).T) * scale * scales.numpy()


@pytest.mark.parametrize(("n_out", "n_in"), [(16, 64), (48, 576), (1, 3), (17, 65), (200, 130), (576, 1536)])
@pytest.mark.parametrize("n_rows", [1, 5])
@pytest.mark.parametrize("outliers", [0, 1, 3])
@pytest.mark.parametrize("means", [MEANS, GATED_MEANS])
def test_products_are_those_of_integers(
    kernels: Kernels, n_out: int, n_in: int, n_rows: int, outliers: int, means: int
) -> None:
    """A gate of 128 over x / 128 is exactly x, because 1 + exp(-128) is 1."""
    weight, scales = weights(n_out, n_in)
    x = torch.randn(n_rows, n_in)
    x[0, : min(64, n_in)] = 0
    x[:, :: max(1, n_in // 3)][:, :outliers] *= 100
    x[-1, -1] = 1000.0 if outliers == 3 else 0.0
    gated = means == GATED_MEANS
    inputs = torch.cat([torch.full_like(x, 128), x / 128], 1) if gated else x
    found = kernels.linear(records.int8(weight, scales), inputs, gated=gated).numpy()
    expected = exact(x, weight, scales, means)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_an_outlier_leaves_the_other_channels_their_precision(kernels: Kernels) -> None:
    """With one scale for the greatest value, a channel of magnitude 1 beside 120 would be 1 of 127 levels."""
    weight, scales = weights(48, 576)
    x = torch.rand(3, 576) * 2 - 1
    x[:, 100] = 120.0
    outlier = (weight[:, 100] * scales).double() * 120
    rest = kernels.linear(records.int8(weight, scales), x).double() - outlier
    true = x.double() @ (weight * scales[:, None]).double().T - outlier
    assert (rest - true).norm() / true.norm() < 0.02


def test_a_row_is_not_changed_by_the_outliers_of_others(kernels: Kernels) -> None:
    packed = records.int8(*weights(72, 1100))
    x = torch.randn(40, 1100)
    alone = kernels.linear(packed, x[3:4])
    x[4:, ::7] *= 300
    assert torch.equal(kernels.linear(packed, x)[3:4], alone)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_harms_no_other(kernels: Kernels, value: float) -> None:
    packed, x = records.int8(*weights(72, 300)), torch.randn(20, 300)
    expected = kernels.linear(packed, x)
    x[7, 33] = value
    found = kernels.linear(packed, x)
    assert not found[7].isfinite().any()
    assert torch.equal(found[torch.arange(20) != 7], expected[torch.arange(20) != 7])


def test_more_inputs_than_sums_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="65600 inputs of a projection are more than 65536"):
        packed.int8(1, 65600)


def test_the_widest_row_is_exact(kernels: Kernels) -> None:
    """All weights and activations have the greatest magnitude, and one activation is an outlier."""
    weight = torch.full((1, structs.MAX_CHANNELS), 127, dtype=torch.int8)
    x = torch.ones(1, structs.MAX_CHANNELS)
    x[0, 7] = 4.0
    found = kernels.linear(records.int8(weight, torch.ones(1)), x)
    np.testing.assert_allclose(found.numpy(), exact(x, weight, torch.ones(1)), rtol=1e-6)


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
