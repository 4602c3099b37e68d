"""Every scheme's kernels on a GPU, against PyTorch on the CPU. Run with `pytest -m gpu tests/gpu`."""

from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import silu

pytest.importorskip("triton")

from model.checkpoint.stored import Stored
from model.config.model import ModelConfig
from model.kernels.cuda import convert, gate, norm, product, routing
from model.kernels.cuda.layouts import FEW_ROWS, DeviceWeights
from model.linear import fp8, selection
from model.linear.base import RMSNorm
from model.linear.floats import Floats
from model.linear.fp8 import quantize
from model.network import weights
from model.network.moe import MoE, route
from model.network.transformer import Transformer
from model.sharding.shard import shard_of
from tests.gpu.cases import DTYPES, alternating, combined, sized
from tests.model.attention.reference import ReferenceAttention
from tests.model.driving import CPU, Driver, random_stored, tiny
from tests.model.kernels.triton_case import LAYOUTS, NAMES, poisoned, stacked, weights_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

GPU = torch.device("cuda")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SHAPES = sized([(4096, 4096), (6144, 1024), (100, 192)], [(256, 512), (100, 192)])
WIDE, DEEP = sized((6144, 4096), (192, 256))
SPARSE = {"n_experts": 8, "n_experts_per_token": 2}

needs_fp8 = pytest.mark.skipif(
    torch.cuda.get_device_capability() < (8, 9) if torch.cuda.is_available() else True, reason="no fp8"
)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield from poisoned()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = (found.cpu().double() - expected.double()).norm() / expected.double().norm()
    assert error < TOLERANCE[found.dtype], error


def there(weights: DeviceWeights) -> DeviceWeights:
    return DeviceWeights(weights.layout, weights.values.to(GPU), tuple(table.to(GPU) for table in weights.tables))


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(("shape", "layout", "dtype"), combined(SHAPES, LAYOUTS, DTYPES), ids=str)
def test_products(shape: tuple[int, int], layout: str, dtype: torch.dtype) -> None:
    """The shapes reach every tile: few and many rows, alone, added to a tensor, as gate and up, and fixed."""
    torch.manual_seed(0)
    weights, matrix = weights_of(layout, torch.randn(shape) / shape[1] ** 0.5, dtype)
    mine = there(weights)
    for n_rows in sized((1, 13, 17, 64, 65, 200), (1, 17, 65)):
        x, onto = torch.randn(n_rows, shape[1]).to(dtype), torch.randn(n_rows, shape[0]).to(dtype)
        expected = x.float() @ matrix.T
        for fixed in (False, True):
            close(product.product(x.to(GPU), mine, fixed=fixed), expected)
            close(product.product(x.to(GPU), mine, onto=onto.to(GPU), fixed=fixed), onto.float() + expected)
            left, right = expected.chunk(2, dim=1)
            close(product.product(x.to(GPU), mine, gated=True, fixed=fixed), silu(left) * right)


@pytest.mark.usefixtures("poison")
def test_odd_channels() -> None:
    weights, matrix = weights_of("plain", torch.randn(33, 71), torch.bfloat16)
    x = torch.randn(5, 71).bfloat16()
    close(product.product(x.to(GPU), there(weights)), x.float() @ matrix.T)


@pytest.mark.parametrize(("layout", "dtype"), alternating(LAYOUTS, DTYPES), ids=str)
def test_a_row_has_the_same_bits_beside_any_others_in_fixed_tiles(layout: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = there(weights_of(layout, torch.randn(WIDE, DEEP) / 64, dtype)[0])
    x = torch.randn(300, DEEP, dtype=dtype, device=GPU)
    for gated in (False, True):
        whole = product.product(x, weights, gated=gated, fixed=True)
        for first, stop in ((0, 1), (31, 33), (5, 260), (299, 300)):
            assert torch.equal(product.product(x[first:stop], weights, gated=gated, fixed=True), whole[first:stop])


def test_all_int4_values() -> None:
    """Every pair of half-bytes, with every zero, is exact. No interpreter runs the assembly that is tested here."""
    values = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 32)
    for dtype in (torch.bfloat16, torch.float16):
        for zero in range(16):
            tables = torch.ones(1, 256, dtype=torch.bfloat16), torch.full((1, 256), zero, dtype=torch.uint8)
            y = product.product(torch.eye(64, dtype=dtype, device=GPU), there(DeviceWeights("int4", values, tables)))
            expected = torch.cat((values & 15, values >> 4), dim=1).float() - zero
            assert torch.equal(y.float().T.cpu(), expected)


def test_all_fp8_values() -> None:
    values = torch.arange(256, dtype=torch.uint8).repeat_interleave(16).view(256, 16).repeat(1, 4)
    numbers = values.view(torch.float8_e4m3fn)
    numbers = torch.where(numbers.float().isnan(), 0, numbers.float()).to(torch.float8_e4m3fn)
    for dtype in (torch.bfloat16, torch.float16):
        weights = there(DeviceWeights("fp8", numbers, (torch.ones(256),)))
        y = product.product(torch.eye(64, dtype=dtype, device=GPU), weights)
        assert torch.equal(y.float().T.cpu(), numbers.float())


def test_programs_that_share_channels_leave_nothing_behind() -> None:
    """Many launches after each other, some alike: every sum is whole, and the same bits come again."""
    torch.manual_seed(0)
    weights = there(weights_of("int4", torch.randn(DEEP, 14336) / 120, torch.bfloat16)[0])
    for n_rows in (1, 16, 64, 100):
        x = torch.randn(n_rows, 14336, dtype=torch.bfloat16, device=GPU)
        first = product.product(x, weights)
        assert all(torch.equal(product.product(x, weights), first) for _ in range(sized(50, 2)))
        assert not product.arrivals(x.device).any()


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_around_the_products(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for dim in (70, 576, 4096):
        layer = RMSNorm(dim, 1e-5).requires_grad_(False)
        layer.weight.data = torch.randn(dim).to(dtype)
        x = torch.randn(77, dim).to(dtype)
        close(norm.rms_norm(x.to(GPU), layer.weight.to(GPU), 1e-5), layer.float()(x.float()))
    gate_up = torch.randn(5, 2 * 14336).to(dtype)
    left, right = gate_up.float().chunk(2, dim=1)
    close(gate.swiglu(gate_up.to(GPU)), silu(left) * right)
    for layout in LAYOUTS[1:]:
        weights, matrix = weights_of(layout, torch.randn(100, 192), dtype)
        assert torch.equal(convert.dequantize(there(weights), 30, 90, dtype).cpu(), matrix[30:90].to(dtype))


@needs_fp8
@pytest.mark.usefixtures("poison")
def test_rows_to_fp8() -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 14336) * torch.logspace(-6, 3, 30)[:, None]
    values, scales = convert.to_fp8(x.to(GPU))
    expected = quantize(x)
    assert torch.equal(values.cpu().float(), expected[0].float())
    torch.testing.assert_close(scales.cpu(), expected[1])


@pytest.mark.parametrize("n_rows", sized([1, 64, 200, 3000], [1, 64, 200]))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_experts(layout: str, n_rows: int) -> None:
    """The test covers the assignment of tokens to experts, and its grouped product."""
    torch.manual_seed(0)
    logits, x = torch.randn(n_rows, 8), torch.randn(n_rows, 256).bfloat16()
    parts = [weights_of(layout, torch.randn(128, 256) / 16, torch.bfloat16) for _ in range(8)]
    tile = product.tile_of(layout, -(-n_rows * 2 // 8), fixed=False)
    plan = routing.assign(logits.to(GPU), 2, tile.rows)
    experts, shares = route(logits, 2)
    torch.testing.assert_close(plan.shares.cpu(), shares)
    weights = there(stacked([part for part, _ in parts]))
    y = product.grouped(x.to(GPU), weights, plan.slots, plan.experts, 2, tile, 2 * n_rows, gated=False)
    every = torch.stack([x.float() @ matrix.T for _, matrix in parts], dim=1)  # [T, 8, 128]
    expected = every.gather(1, experts[:, :, None].expand(-1, -1, 128))
    close(y, expected.flatten(0, 1))
    close(routing.join(y, plan.shares, None), (expected * shares[:, :, None]).sum(dim=1))


def test_experts_in_a_graph() -> None:
    """The block never waits for the host. Rows may choose other experts at every replay."""
    torch.manual_seed(0)
    with torch.device("meta"):
        block = MoE(256, 512, 8, 2)
    block.reserve(torch.bfloat16, GPU)
    block.gate.assign_weights(block.gate.allocate((), torch.bfloat16, GPU))
    for part in block.modules():
        if isinstance(part, Floats):
            part.weight.data.normal_(std=0.1)
    x = torch.randn(16, 256, dtype=torch.bfloat16, device=GPU)
    block(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = block(x)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, block(x), rtol=1e-2, atol=1e-2)


def network(config: ModelConfig, scheme: str, dtype: torch.dtype, device: torch.device) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config, scheme)
    weights.load(model, shard_of(config), "half", random_stored(config), dtype, device, lambda _: None)
    return model.eval()


@pytest.mark.parametrize(
    ("scheme", "changes", "fixed"), combined(["none", *NAMES.values()], [{}, SPARSE], [False, True]), ids=str
)
def test_networks(scheme: str, changes: dict[str, object], fixed: bool) -> None:
    """Few rows, and more rows than the kernels compute, agree with the CPU. float32 has no product in fp8."""
    config = tiny((None, 9), **({"dim": 64, "hidden_dim": 128, "head_dim": 16} | changes))
    mine, plain = network(config, scheme, torch.float32, GPU), network(config, scheme, torch.float32, CPU)
    selection.fix_tiles(plain)  # else it rounds many rows to fp8, as no GPU does in float32
    if fixed:
        selection.fix_tiles(mine)
    for n in (5, FEW_ROWS["int4"] + 20):
        tokens = [(7 * i) % 64 for i in range(n)]
        expected = Driver(plain, ReferenceAttention(), length=1024).whole(tokens)
        found = Driver(mine, ReferenceAttention(), length=1024).whole(tokens).cpu()
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


@needs_fp8
def test_products_in_fp8() -> None:
    """PyTorch's product of many rows in fp8 agrees with the product of the same numbers in float32."""
    torch.manual_seed(0)
    layer = selection.PROJECTIONS["fp8"](512, 384)
    layer.assign_weights(layer.allocate((), torch.bfloat16, GPU))
    matrix = torch.randn(384, 512)
    layer.take(0, Stored(matrix))
    x = torch.randn(fp8.ROWS + 1, 512).bfloat16()
    (rows, row_scales), (columns, scales) = quantize(x.float()), quantize(matrix)
    expected = (rows.float() * row_scales) @ (columns.float() * scales).T
    close(layer(x.to(GPU)), expected)
