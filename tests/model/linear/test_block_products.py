"""Products with weights in blocks of 32, every variant of the kernels, against integers by NumPy and gguf's decoder."""

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from torch import Tensor

from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from tests.model import records
from tests.model.records import KINDS, random_blocks


def integers(quants: Tensor, has_minima: bool) -> np.ndarray:
    """Weights before scale and minimum: [n_out, n_groups, 32]."""
    q = quants.numpy()
    if q.shape[2] == 32:
        return q.astype(np.int64)
    return np.concatenate((q & 15, q >> 4), axis=2).astype(np.int64) - (0 if has_minima else 8)


def exact(x: Tensor, quants: Tensor, scales: Tensor, mins: Tensor | None) -> np.ndarray:
    """The products of rows quantized to bytes in groups of 32. Sums of a group are integers, all else is float64."""
    rows = x.numpy().reshape(len(x), -1, 1, 32)
    greatest = np.abs(rows).max(axis=3, keepdims=True)
    inverse = np.divide(np.float32(127), greatest, out=np.zeros_like(greatest), where=greatest > 0)
    q = np.rint(rows * inverse).astype(np.int64)  # [T, G, 1, 32]
    weight = integers(quants, mins is not None).swapaxes(0, 1)  # [G, n_out, 32]
    part = (q * weight).sum(3) * scales.double().numpy().T  # [T, G, n_out]
    if mins is not None:
        part = part + q.sum(3) * mins.double().numpy().T
    return (part * (greatest[..., 0].astype(np.float64) / 127)).sum(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_out", "n_groups", "n_rows"), [(16, 1, 1), (50, 3, 5), (208, 18, 13), (64, 48, 1)])
def test_products_are_those_of_integers(kernels: Kernels, kind: str, n_out: int, n_groups: int, n_rows: int) -> None:
    parts = random_blocks(kind, n_out, n_groups)
    x = torch.randn(n_rows, n_groups * 32)
    x[0, :32] = 0
    found = kernels.linear(records.packed(kernels, *parts), x).numpy()
    expected = exact(x, *parts)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=3e-6 * np.abs(expected).max())


def packed_from_file(kernels: Kernels, data: np.ndarray, kind: gguf.GGMLQuantizationType) -> PackedWeights:
    """A tensor's bytes [n_out, bytes] as llama.cpp lays them out: float16 scale (and minimum), then the weights."""
    n_halves = 2 if kind.name == "Q4_1" else 1
    groups = torch.from_numpy(data.copy()).unflatten(1, (-1, 2 * n_halves + (32 if kind.name == "Q8_0" else 16)))
    halves = groups[..., : 2 * n_halves].contiguous().view(torch.float16)
    quants = groups[..., 2 * n_halves :].contiguous()
    quants = quants.view(torch.int8) if kind.name == "Q8_0" else quants
    return records.packed(kernels, quants, halves[..., 0], halves[..., 1] if n_halves > 1 else None)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_of_a_file_are_what_its_decoder_says(kernels: Kernels, name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    weight = np.random.default_rng(1).standard_normal((40, 96)).astype(np.float32)
    data = gguf.quants.quantize(weight, kind)
    # Rows of the identity are exact as bytes: the products are the weights themselves.
    found = kernels.linear(packed_from_file(kernels, data, kind), torch.eye(96) * 127)
    np.testing.assert_allclose(found.numpy().T / 127, dequantize(data, kind), rtol=1e-5, atol=1e-6)
