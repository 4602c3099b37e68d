"""The GPU's products under Triton's interpreter, against PyTorch's with dequantized weights."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import silu

pytest.importorskip("triton")

from model.kernels.cuda import convert, gate, norm, product
from model.linear.base import RMSNorm
from model.linear.fp8 import Fp8Linear
from tests.model.kernels.triton_case import DTYPES, LAYOUTS, close, poisoned, small_tiles, stacked, weights_of


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    yield from poisoned()


@pytest.fixture(autouse=True)
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "TILES", small_tiles())


@pytest.mark.parametrize(
    ("n_rows", "dtype"),
    [(1, torch.float16), (17, torch.float32), (64, torch.bfloat16), (200, torch.float32)],
    ids=str,
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products(layout: str, n_rows: int, dtype: torch.dtype) -> None:
    """The sizes fill no tile. The product is computed alone, added to a tensor, and as gate and up."""
    torch.manual_seed(0)
    n_out, n_in = 38, 192 if layout == "int4" else 100
    weights, matrix = weights_of(layout, torch.randn(n_out, n_in), dtype)
    x = torch.randn(n_rows, n_in).to(dtype)
    expected = x.double() @ matrix.double().T
    close(product.product(x, weights), expected)
    onto = torch.randn(n_rows, n_out).to(dtype)
    sums = onto.double() + expected
    assert product.product(x, weights, onto=onto) is onto
    close(onto, sums)
    up = expected[:, n_out // 2 :]
    close(product.product(x, weights, gated=True), silu(expected[:, : n_out // 2]) * up)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_programs_share_the_channels(layout: str, gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole steps of channels, divided between 4 programs; the launches leave no arrivals."""
    torch.manual_seed(0)
    weights, matrix = weights_of(layout, torch.randn(32, 1024))
    x, onto = torch.randn(3, 1024) / 9, None if gated else torch.randn(3, 32)
    shares, launch = [], product._launch
    monkeypatch.setattr(product, "WARPS", 16 if gated else 32)
    monkeypatch.setattr(product, "_launch", lambda *args, **more: (shares.append(args[5]), launch(*args, **more)))
    expected = x.double() @ matrix.double().T
    left, right = expected.chunk(2, dim=1)
    expected = silu(left) * right if gated else expected + (0 if onto is None else onto)
    for _ in range(2):
        close(product.product(x, weights, gated=gated, onto=None if onto is None else onto.clone()), expected)
    assert shares == [4, 4]
    assert not product.arrivals(x.device).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_has_the_same_bits_beside_any_others_in_fixed_tiles(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in more than one launch, and where programs share the channels."""
    torch.manual_seed(0)
    monkeypatch.setattr(product, "FIXED_ROWS", 64)
    weights, _ = weights_of(layout, torch.randn(20, 256))
    x = torch.randn(80, 256)
    whole = product.product(x, weights, fixed=True)
    for first, stop in ((0, 1), (5, 14), (60, 70)):
        assert torch.equal(product.product(x[first:stop], weights, fixed=True), whole[first:stop])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_grouped_by_expert(layout: str) -> None:
    """3 tokens make pairs 0..5. The blocks hold 4 and 1 for expert 2, none, and 0, 3, 5 for expert 0. None holds 2."""
    torch.manual_seed(0)
    n_in, n_out = 128, 20
    parts = [weights_of(layout, torch.randn(n_out, n_in)) for _ in range(3)]
    weights = stacked([part for part, _ in parts])
    tile = product.tile_of(layout, 8, fixed=False)
    slots = torch.full((3, tile.rows), -1, dtype=torch.int32)
    slots[0, :2], slots[2, :3] = torch.tensor([4, 1]), torch.tensor([0, 3, 5])
    experts = torch.tensor([2, -1, 0], dtype=torch.int32)
    x = torch.randn(3, n_in)
    y = product.grouped(x, weights, slots, experts, 2, tile, 6, gated=False)
    for pair, expert in ((4, 2), (1, 2), (0, 0), (3, 0), (5, 0)):
        close(y[pair], x[pair // 2].double() @ parts[expert][1].double().T)
    assert y[2].isnan().all()


@pytest.mark.parametrize("gated", [False, True])
def test_grouped_in_fp8(gated: bool) -> None:
    """Rows that fp8 holds exactly, each with a scale of its own, times the weights of two experts."""
    torch.manual_seed(0)
    parts = [weights_of("fp8", torch.randn(20, 128)) for _ in range(2)]
    x = torch.randn(3, 128).mul(40).to(torch.float8_e4m3fn).float()
    x[:, 7] = -448
    x *= torch.tensor([1 / 64, 1 / 512, 1 / 2048])[:, None]
    tile = product.tile_of("fp8", 128, fixed=False)
    slots = torch.full((2, tile.rows), -1, dtype=torch.int32)
    slots[0, :2], slots[1, :4] = torch.tensor([4, 1]), torch.tensor([0, 3, 5, 2])
    experts = torch.tensor([1, 0], dtype=torch.int32)
    weights = stacked([part for part, _ in parts])
    y = product.grouped(x, weights, slots, experts, 2, tile, 6, gated=gated, narrow=True)
    assert y.dtype == x.dtype
    for pair, expert in ((4, 1), (1, 1), (0, 0), (3, 0), (5, 0), (2, 0)):
        expected = x[pair // 2].double() @ parts[expert][1].double().T
        close(y[pair], silu(expected[:10]) * expected[10:] if gated else expected)


@DTYPES
@pytest.mark.parametrize("dim", [5, 64, 300])
def test_norm(dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = RMSNorm(dim, 1e-5).requires_grad_(False)
    layer.weight.data = torch.randn(dim).to(dtype)
    x = torch.randn(11, dim).to(dtype) * 3
    close(norm.rms_norm(x, layer.weight, 1e-5), layer.float()(x.float()))


@DTYPES
def test_gate(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(3, 2 * 1030).to(dtype)
    left, right = gate_up.float().chunk(2, dim=1)
    close(gate.swiglu(gate_up), silu(left) * right)


def test_rows_to_fp8() -> None:
    """The rows are numbers that fp8 holds, times powers of two. The interpreter does not round to fp8 as devices do."""
    torch.manual_seed(0)
    held = torch.randn(4, 100).mul(40).to(torch.float8_e4m3fn).float()
    held[:, 7] = -448
    held[3] = 0
    values, scales = convert.to_fp8(held * torch.tensor([0.25, 1.0, 2.0**-20, 1.0])[:, None])
    assert torch.equal(values.float(), held)
    assert scales[:3, 0].tolist() == [0.25, 1.0, 2.0**-20]


def test_product_in_fp8() -> None:
    """PyTorch's public product in fp8, of rows that fp8 holds exactly, against float64."""
    torch.manual_seed(0)
    layer = Fp8Linear(64, 48)
    layer.assign_weights(weights_of("fp8", matrix := torch.randn(48, 64))[0])
    assert layer.weights is not None
    x = torch.randn(130, 64).mul(40).to(torch.float8_e4m3fn).float()
    x[:, 7] = -448
    y = layer.scaled((x / 64).bfloat16())
    close(y, (x / 64).double() @ layer.dequantize(layer.weights, slice(0, 48)).double().T)
    assert (y.double() - (x / 64).double() @ matrix.double().T).norm() / y.double().norm() < 0.05


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_dequantized_in_pieces(layout: str) -> None:
    weights, matrix = weights_of(layout, torch.randn(40, 128))
    pieces = [convert.dequantize(weights, first, stop, torch.float32) for first, stop in ((0, 17), (17, 40))]
    assert torch.equal(torch.cat(pieces), matrix)


def pairs(word: int, dtype: torch.dtype) -> torch.Tensor:
    """The two numbers in a register."""
    return torch.from_numpy(np.array([word], dtype="<u4").view(np.int16).copy()).view(dtype)


def run(ptx: str, dtype: torch.dtype, **given: int) -> torch.Tensor:
    """The 4 numbers in the registers $0 and $1 after some PTX, with `given` registers, such as r2 for $2."""
    registers = {f"${name[1:]}": word for name, word in given.items()}

    def value(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    for line in ptx.strip("{} ").split(";")[1:-1]:
        operation, target, *sources = re.split(r"[ ,]+", line.strip())
        a, *others = map(value, sources)
        if operation.startswith("fma.rn."):
            x, y, z = (pairs(word, dtype).double() for word in (a, *others))
            registers[target] = int((x * y + z).to(dtype).view(torch.int16).numpy().view("<u4")[0])
        elif operation == "prmt.b32":
            eight = np.array([a, others[0]], dtype="<u4").view(np.uint8)
            picked = [eight[others[1] >> 4 * i & 7] for i in range(4)]
            registers[target] = int(np.array(picked, dtype=np.uint8).view("<u4")[0])
        else:
            simple = {"shr.b32": int.__rshift__, "and.b32": int.__and__, "or.b32": int.__or__, "mov.b32": lambda a: a}
            registers[target] = simple[operation](a, *others)
    return torch.cat([pairs(registers["$0"], dtype), pairs(registers["$1"], dtype)])


@pytest.mark.parametrize(("low", "high", "dtype", "magic"), [
    (convert._BF16_LOW, convert._BF16_HIGH, torch.bfloat16, 128),
    (convert._FP16_LOW, convert._FP16_HIGH, torch.float16, 1024),
])  # fmt: skip
def test_assembly_of_nibbles(low: Any, high: Any, dtype: torch.dtype, magic: int) -> None:
    """The test executes the assembly itself, for all bytes in order and every zero. No interpreter runs it."""
    scale = torch.tensor([0.0137, 0.0137]).to(dtype)
    for first, zero in ((first, first // 4 % 16) for first in range(0, 256, 4)):
        data = bytes(range(first, first + 4))
        less = word(torch.tensor([-magic - zero, -magic - zero]).to(dtype))
        for shift, code in ((0, low), (4, high)):
            scales = {"r5": word(scale), "r6": word(scale)} if dtype is torch.bfloat16 else {}
            found = run(code.value, dtype, r2=int.from_bytes(data, "little"), r3=less, r4=less, **scales)
            values = torch.tensor([byte >> shift & 15 for byte in data]).double() - zero
            assert torch.equal(found, (values * scale[0].double() if scales else values).to(dtype))


def word(two: torch.Tensor) -> int:
    return int(two.view(torch.int16).numpy().view("<u4")[0])


@pytest.mark.parametrize(("code", "dtype"), [
    (convert._BF16_E4M3, torch.bfloat16), (convert._FP16_E4M3, torch.float16)
])  # fmt: skip
def test_assembly_of_fp8(code: Any, dtype: torch.dtype) -> None:
    """All numbers of e4m3, subnormal ones too, as PyTorch converts them."""
    for first in range(0, 256, 4):
        data = torch.arange(first, first + 4, dtype=torch.uint8)
        found = run(code.value, dtype, r2=int.from_bytes(data.numpy().tobytes(), "little"))
        expected = data.view(torch.float8_e4m3fn).to(dtype)
        there = ~expected.isnan()
        assert torch.equal(found[there], expected[there])
