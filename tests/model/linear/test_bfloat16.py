"""bfloat16 weights: the kernels against plain additions and against themselves."""

import pytest
import torch
from torch import Tensor

from model.attention import choose
from model.checkpoint.matrices import BlockMatrix
from model.errors import OptionError
from model.kernels.cpu import packed
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.linear import schemes
from model.linear.bfloat16 import BFloat16Linear
from model.network import weights
from model.network.transformer import Transformer
from model.sharding.shard import shard_of
from tests.model import records
from tests.model.driving import CPU, Driver, random_model, random_tensors, tiny

SHAPES = [(16, 64), (1, 3), (17, 65), (200, 130), (576, 1536)]


def rounded(*shape: int) -> Tensor:
    """Values of bfloat16, in float32."""
    return torch.randn(shape).bfloat16().float()


def of(kernels: Kernels, weight: Tensor) -> PackedWeights:
    made = packed.bfloat16(*weight.shape)
    kernels.quantize(made, 0, weight)
    return made


@pytest.mark.parametrize(("n_out", "n_in"), SHAPES)
@pytest.mark.parametrize("n_rows", [1, 8, 15])
def test_products_are_one_chain_of_additions(kernels: Kernels, n_out: int, n_in: int, n_rows: int) -> None:
    """Products are exact, and each sum is rounded to float32. vdpbf16ps adds the second product of a pair first."""
    torch.manual_seed(0)
    weight, x = rounded(n_out, n_in).double(), rounded(n_rows, n_in).double()
    order = torch.arange(n_in)
    if kernels.variant in ("avx512bf16", "amx"):
        order = torch.arange(n_in + n_in % 2).bitwise_xor(1)
    expected = torch.zeros(n_rows, n_out)
    for i in order[order < n_in]:
        expected = (expected + x[:, i, None] * weight[:, i]).float()
    assert torch.equal(kernels.linear(of(kernels, weight.float()), x.float()), expected)


@pytest.mark.parametrize("kind", ["plain", "normed", "gated"])
def test_norm_gate_and_residual_are_those_of_pytorch(kernels: Kernels, kind: str) -> None:
    """With unit weights the products are the multiplied rows. They are within half a step of bfloat16."""
    torch.manual_seed(0)
    unit = of(kernels, torch.eye(80))
    x, scale = torch.randn(9, 160 if kind == "gated" else 80) * 5, torch.rand(80)
    if kind == "gated":
        found, expected = kernels.linear(unit, x, gated=True), torch.nn.functional.silu(x[:, :80]) * x[:, 80:]
    elif kind == "normed":
        found = kernels.linear(unit, x, norm=scale, eps=1e-5)
        expected = torch.nn.functional.rms_norm(x, (80,), None, 1e-5) * scale
    else:
        found, expected = kernels.linear(unit, x, onto=torch.ones(9, 80)) - 1, x
    torch.testing.assert_close(found, expected, rtol=2**-8 * 1.01, atol=1e-6)


@pytest.mark.parametrize(("n_out", "n_in"), [(208, 576), (40, 100)])
@pytest.mark.parametrize("kind", ["plain", "normed", "gated"])
def test_a_row_gives_the_same_bits_beside_any_others(kernels: Kernels, n_out: int, n_in: int, kind: str) -> None:
    made = of(kernels, torch.randn(n_out, n_in))
    x = torch.randn(300, n_in * (2 if kind == "gated" else 1)) * 3
    options = {"norm": torch.rand(n_in), "eps": 1e-5} if kind == "normed" else {"gated": kind == "gated"}
    whole = kernels.linear(made, x, **options)
    for n_rows in (1, 2, 3, 4, 8, 15, 33):
        assert torch.equal(kernels.linear(made, x[:n_rows], **options), whole[:n_rows])
        assert torch.equal(kernels.linear(made, x[7 : 7 + n_rows], **options), whole[7 : 7 + n_rows])
    onto = torch.randn(33, n_out)
    expected = onto + whole[:33]
    assert torch.equal(kernels.linear(made, x[:33], onto=onto, **options), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_input_that_is_no_number_gives_no_number(kernels: Kernels, bad: float) -> None:
    x = torch.randn(20, 192)
    x[7, 100] = bad
    finite = kernels.linear(of(kernels, torch.randn(48, 192)), x).isfinite()
    assert not finite[7].any()
    assert finite.sum() == 19 * 48


# Packing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n_out", "n_in", "cuts"), [(1, 3, ()), (17, 65, (5,)), (48, 576, (16, 40)), (100, 130, (1,))])
def test_weights_are_rounded_as_pytorch_does_and_permuted(
    kernels: Kernels, dtype: torch.dtype, n_out: int, n_in: int, cuts: tuple[int, ...]
) -> None:
    weight = torch.randn(n_out, n_in).to(dtype)
    weight[0, :3] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -0.0])  # to even, down and up
    made = packed.bfloat16(n_out, n_in)
    for first, stop in zip((0, *cuts), (*cuts, n_out), strict=True):
        kernels.quantize(made, first, weight[first:stop])
    assert torch.equal(made.packed, records.bfloat16(weight.bfloat16()))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3.4e38])
def test_weights_that_are_not_finite_in_bfloat16_are_refused(kernels: Kernels, bad: float) -> None:
    for column in (0, 99):
        weight = torch.randn(20, 100)
        weight[7, column] = bad
        with pytest.raises(ValueError, match="not finite"):
            of(kernels, weight)
    of(kernels, torch.full((1, 1), 3.39e38))


# Projections and networks


@pytest.mark.parametrize("n_rows", [1, 32, 33, 100])
@pytest.mark.parametrize("shape", [(40, 100), (5, 7), (256, 64)], ids=str)
def test_parts_may_come_in_any_order_and_format(shape: tuple[int, int], n_rows: int) -> None:
    torch.manual_seed(0)
    weight, x = rounded(*shape), rounded(n_rows, shape[1])
    made = BFloat16Linear(shape[1], shape[0])
    made.take(4, weight[4:])
    made.take(0, weight[:4].bfloat16())
    torch.testing.assert_close(made(x).double(), x.double() @ weight.double().T, rtol=2**-8, atol=1e-2)


@pytest.mark.parametrize("bad", [float("nan"), 3.4e38])
def test_a_projection_refuses_what_is_not_finite_in_bfloat16(bad: float) -> None:
    weight = torch.randn(300, 8)
    weight[280, 3] = bad
    with pytest.raises(ValueError, match="not finite"):
        BFloat16Linear(8, 300).take(0, weight)


def test_a_files_blocks_are_decoded() -> None:
    blocks = BlockMatrix(torch.randint(-127, 128, (300, 2, 32), dtype=torch.int8), torch.rand(300, 2).half())
    made = BFloat16Linear(64, 300)
    made.take(0, blocks)
    expected = blocks.dequantize().bfloat16().float().T
    assert torch.equal(made(torch.eye(64)).float(), expected)


@pytest.mark.parametrize("changes", [{}, {"tied_head": True}, {"n_experts": 4, "n_experts_per_token": 2}], ids=str)
def test_network_is_near_its_float32_self(changes: dict[str, object]) -> None:
    config = tiny((None, 9), **changes)
    with torch.device("meta"):
        model = Transformer(config, "bfloat16")
    weights.load(
        model, shard_of(config), "half", random_tensors(config), torch.float32, CPU, lambda _: None, torch.bfloat16
    )
    tokens = [(7 * i) % 64 for i in range(50)]
    attention = choose("auto", CPU)[1]
    logits = Driver(model.eval(), attention).whole(tokens)
    expected = Driver(random_model(config), attention).whole(tokens)
    for chunk in (1, 7):
        cut = Driver(model, attention, shuffle=1).whole(tokens, chunk)
        assert torch.nn.functional.cosine_similarity(cut, expected).min() > 0.99
        assert torch.equal(cut, logits)


def test_it_is_what_none_is_in_bfloat16_on_a_cpu() -> None:
    def name(scheme: str, dtype: str, device: str, *, compiled: bool = True) -> str:
        return schemes.serving(schemes.SCHEMES[scheme], dtype, device, compiled=compiled).name

    assert name("none", "bfloat16", "cpu") == "bfloat16"
    assert name("none", "bfloat16", "cpu", compiled=False) == "none"
    assert [name("none", "float32", "cpu"), name("none", "bfloat16", "cuda")] == ["none", "none"]
    assert name("int8", "bfloat16", "cpu") == "int8"
    with pytest.raises(OptionError, match="--quantize bfloat16 is not known, choose one of: auto, none, fp8"):
        schemes.choose("bfloat16", "auto", "cpu", compiled=True)
