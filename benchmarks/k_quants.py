"""What GGUF's kinds of blocks cost in the int4 scheme: `python -m benchmarks.k_quants [--seconds 3]`.

The matrices are those of one layer of Mistral 7B, with normally distributed weights, encoded in each kind. Two ways to
store them for the kernels are compared: quantized again to 8 bits in groups of 32, and the groups of gguf/blocks.py.
Errors are relative to the values of the gguf package's decoder: root mean square of the weights, and of products with
normal activations, which the kernels round to 8 bits. Times are the least of one call of all matrices with one row; the
two ways alternate. GB/s counts the bytes that are stored.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from rich.console import Console
from rich.table import Table
from torch import Tensor

from model.checkpoint import matrices
from model.checkpoint.gguf.blocks import quantize8
from model.checkpoint.matrices import BlockMatrix, EncodedMatrix
from model.kernels.cpu import native, packed
from model.kernels.cpu.packed import PackedWeights

SHAPES = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))
"""Channels and outputs of wqkv, wo, w13 and w2."""
KINDS = ("Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1", "Q3_K")


@dataclass(frozen=True)
class Way:
    """One way to store the matrices of a kind: its weights, and the error in weights and products."""

    weights: Sequence[PackedWeights]
    weight_error: float
    product_error: float

    @property
    def n_bytes(self) -> int:
        return sum(part.packed.numel() for part in self.weights)


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """Rows of float32 in this kind, by rounding: good enough to have the statistics of a real file."""
    if kind in ("Q5_0", "Q5_1"):
        return quantize(values, GGMLQuantizationType[kind])
    if kind in ("Q4_K", "Q5_K"):
        return _with_minima(values, 4 if kind == "Q4_K" else 5)
    return _in_sixteens(values, 6 if kind == "Q6_K" else 3)


def _with_minima(values: np.ndarray, bits: int) -> np.ndarray:
    groups = values.reshape(len(values), -1, 8, 32)
    low = np.minimum(groups.min(3), 0)
    steps = (groups.max(3) - low) / (2**bits - 1)
    d, dmin = (part.max(2, keepdims=True) / 63 for part in (steps, -low))
    scales, minima = (np.rint(part / factor).astype(np.uint8) for part, factor in ((steps, d), (-low, dmin)))
    q = (groups + (dmin * minima)[..., None]) / np.maximum(d * scales, 1e-12)[..., None]
    q = np.rint(q).clip(0, 2**bits - 1).astype(np.uint8)
    (sc, sc4), (mn, mn4) = (np.split(part, 2, axis=2) for part in (scales, minima))
    table = np.concatenate((sc | sc4 >> 4 << 6, mn | mn4 >> 4 << 6, sc4 & 15 | (mn4 & 15) << 4), 2)
    nibbles = (q[:, :, 0::2] & 15 | (q[:, :, 1::2] & 15) << 4).reshape(*q.shape[:2], 128)
    high = [np.packbits(q.swapaxes(2, 3) >> 4, axis=3, bitorder="little")[..., 0]] if bits == 5 else []
    head = [part.astype(np.float16).view(np.uint8) for part in (d, dmin)]
    return np.concatenate((*head, table, *high, nibbles), 2).reshape(len(values), -1)


def _in_sixteens(values: np.ndarray, bits: int) -> np.ndarray:
    """Q6_K or Q3_K."""
    groups = values.reshape(len(values), -1, 16, 16)
    top = 2 ** (bits - 1)
    steps = np.abs(groups).max(3) / (top - 0.5)
    d = steps.max(2, keepdims=True) / (127 if bits == 6 else 31)
    scales = np.rint(steps / d).astype(np.int8)
    q = np.rint(groups / np.maximum(d * scales, 1e-12)[..., None]).clip(-top, top - 1).astype(np.int8) + top
    q = q.reshape(*q.shape[:2], 256).astype(np.uint8)
    d = d.astype(np.float16).view(np.uint8)
    if bits == 6:
        halves = q.reshape(*q.shape[:2], 2, 4, 32)
        low = halves[:, :, :, :2] & 15 | (halves[:, :, :, 2:] & 15) << 4
        high = sum(halves[:, :, :, i] >> 4 << 2 * i for i in range(4))
        parts = (low.reshape(*q.shape[:2], 128), high.reshape(*q.shape[:2], 64), scales.view(np.uint8), d)
        return np.concatenate(parts, 2).reshape(len(values), -1)
    halves = q.reshape(*q.shape[:2], 2, 4, 32)
    low = sum((halves[:, :, :, i] & 3) << 2 * i for i in range(4)).reshape(*q.shape[:2], 64)
    high = np.packbits(q.reshape(*q.shape[:2], 8, 32).swapaxes(2, 3) >> 2, axis=3, bitorder="little")[..., 0]
    six = (scales + 32).astype(np.uint8)
    upper = sum((six[..., 4 * i : 4 * i + 4] >> 4) << 2 * i for i in range(4))
    table = np.concatenate((six[..., :8] & 15 | (six[..., 8:] & 15) << 4, upper), 2)
    return np.concatenate((high, low, table, d), 2).reshape(len(values), -1)


def pieces(matrix: EncodedMatrix, *, again: bool) -> list[BlockMatrix]:
    found = []
    for rows in matrices.pieces(matrix):
        found.append(quantize8(rows.dequantize()) if again else rows.blocks())
    return found


def pack(parts: Sequence[BlockMatrix]) -> PackedWeights:
    kernels = native.kernels()
    assert kernels is not None
    n_out, n_in = sum(map(len, parts)), parts[0].shape[1]
    made = packed.blocks(n_out, n_in, parts[0].quants.shape[2], with_minima=parts[0].mins is not None)
    first = 0
    for part in parts:
        kernels.pack(made, first, part.quants, part.scales, part.mins)
        first += len(part)
    return made


def way(parts_of_layer: Sequence[EncodedMatrix], *, again: bool) -> Way:
    kernels = native.kernels()
    assert kernels is not None
    sample = parts_of_layer[1]
    parts = pieces(sample, again=again)
    exact = sample.dequantize()
    x = torch.randn(64, exact.shape[1], generator=torch.Generator().manual_seed(0))
    weights = [pack(pieces(matrix, again=again)) for matrix in parts_of_layer]
    product = x.double() @ exact.double().T
    found = kernels.linear(weights[1], x).double()
    return Way(weights, _error(torch.cat([part.dequantize() for part in parts]), exact), _error(found, product))


def _error(found: Tensor, exact: Tensor) -> float:
    return ((found - exact).norm() / exact.norm()).item()


def seconds(ways: Sequence[Way], limit: float) -> list[float]:
    """The least time of each way; they alternate for so many seconds."""
    kernels = native.kernels()
    assert kernels is not None
    rows = [torch.randn(1, n_in) for n_in, _ in SHAPES]
    best, end = [float("inf")] * len(ways), time.perf_counter() + limit
    while time.perf_counter() < end:
        for number, one in enumerate(ways):
            start = time.perf_counter()
            for x, weights in zip(rows, one.weights, strict=True):
                kernels.linear(weights, x)
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def layer(kind: str) -> list[EncodedMatrix]:
    random, found = np.random.default_rng(0), []
    for n_in, n_out in SHAPES:
        some = encode(random.standard_normal((256, n_in), np.float32) * 0.02, kind)
        data = torch.from_numpy(np.tile(some, (n_out // 256, 1)))
        found.append(EncodedMatrix(data, kind, (n_out, n_in)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    args = parser.parse_args()
    columns = ("kind", "bits in the file", "stored as", "bits", "weights", "products", "ms a layer", "GB/s")
    table = Table(*columns)
    for kind in args.kinds:
        made = layer(kind)
        weights = sum(n_in * n_out for n_in, n_out in SHAPES)
        decoded = dequantize(made[1].data[:256].numpy(), GGMLQuantizationType[kind])
        assert 0.019 < decoded.std() < 0.021, f"the encoder of {kind} is wrong: {decoded.std()}"
        ways = [way(made, again=True), way(made, again=False)]
        for name, one, least in zip(("8 bits again", "groups"), ways, seconds(ways, args.seconds), strict=True):
            bits = sum(matrix.data.numel() for matrix in made) * 8 / weights
            row = (f"{bits:.2f}", name, f"{one.n_bytes * 8 / weights:.2f}", f"{one.weight_error:.5f}")
            speed = (f"{one.product_error:.5f}", f"{least * 1e3:.2f}", f"{one.n_bytes / least / 1e9:.1f}")
            table.add_row(kind, *row, *speed)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
