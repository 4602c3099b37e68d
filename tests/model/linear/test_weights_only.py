"""Schemes with activations in floats: rounding by hand, and networks near their float32 selves."""

import pytest
import torch

from model.attention.sdpa import SdpaAttention
from model.checkpoint.stored import Stored
from model.config.model import ModelConfig
from model.errors import ModelError
from model.kernels import cuda as triton
from model.linear import fp8, int4_weights, selection
from model.linear.floats import Floats, WeightsOnly
from model.linear.none import Linear
from model.linear.selection import PROJECTIONS
from model.network import weights
from model.network.moe import MoE
from model.network.transformer import Transformer
from model.sharding.shard import shard_of
from tests.model.driving import CPU, Driver, random_stored, random_tensors, tiny
from tests.model.encoding import encoded
from tests.model.kernels.triton_case import NAMES, close, small_tiles

TOKENS = [(7 * i) % 64 for i in range(70)]
WIDE = {"dim": 64, "hidden_dim": 128, "head_dim": 16}
"""Whole groups of 64 channels in all projections."""


def test_int4_by_hand() -> None:
    """Group 1 has 15 steps of 0.2 from -1, with zero at 5. Group 2 is zeros. The steps of group 3 start at zero."""
    rows = torch.zeros(1, 192)
    rows[0, :4] = torch.tensor([-1.0, 2.0, 0.5, 0.19])
    rows[0, 128:] = torch.linspace(7.5, 15, 64)
    q, scales, zeros = int4_weights.quantize(rows)
    assert q[0, 0, :5].tolist() == [0, 15, 7, 6, 5]  # 0.5 is 2.496 steps of 0.2 in bfloat16 (0.2002)
    assert (scales[0].tolist(), zeros[0].tolist()) == ([pytest.approx(0.2, rel=2e-3), pytest.approx(0), 1.0], [5, 0, 0])
    assert q[0, 1].tolist() == [0] * 64
    assert (q[0, 2, 0].item(), q[0, 2, -1].item()) == (8, 15)


def test_fp8_by_hand() -> None:
    """The greatest becomes 448; between 16 and 32 fp8 counts in twos."""
    values, scales = fp8.quantize(torch.tensor([[-44.8, 1.9, 0.0], [0.0, 0.0, 0.0]]))
    assert values.float().tolist() == [[-448.0, 20.0, 0.0], [0.0, 0.0, 0.0]]
    assert scales[0].item() == pytest.approx(0.1)


def made(scheme: str, matrix: torch.Tensor, cuts: tuple[int, ...] = ()) -> Floats:
    layer = PROJECTIONS[scheme](matrix.shape[1], len(matrix))
    assert isinstance(layer, Floats)
    layer.assign_weights(layer.allocate((), matrix.dtype, CPU))
    if isinstance(layer, Linear):
        layer.weight.data.copy_(matrix)
    else:
        assert isinstance(layer, WeightsOnly)
        for first, stop in zip((0, *cuts), (*cuts, len(matrix)), strict=True):
            layer.take(first, Stored(matrix[first:stop]))
    return layer


@pytest.mark.parametrize(("scheme", "error"), [("fp8", 0.04), ("int4-weights", 0.12)])
def test_near_the_weights(scheme: str, error: float) -> None:
    torch.manual_seed(0)
    matrix, x = torch.randn(300, 192), torch.randn(7, 192)
    expected = x @ matrix.T
    y = made(scheme, matrix, (16, 299))(x)
    assert 1e-4 < (y - expected).norm() / expected.norm() < error
    assert torch.equal(y, made(scheme, matrix)(x))


@pytest.mark.parametrize("scheme", NAMES.values())
def test_rows_of_a_quantized_file(scheme: str) -> None:
    torch.manual_seed(0)
    blocks = encoded(torch.randn(12, 64), "Q8_0")
    layer = PROJECTIONS[scheme](64, 12)
    assert isinstance(layer, WeightsOnly)
    layer.assign_weights(layer.allocate((), torch.float32, CPU))
    layer.take(0, blocks)
    x = torch.randn(2, 64)
    assert torch.equal(layer(x), made(scheme, blocks.floats())(x))


def test_fp8_rounds_activations_of_many_rows_only() -> None:
    torch.manual_seed(0)
    layer = made("fp8", torch.randn(8, 64))
    x = torch.randn(fp8.ROWS + 1, 64)
    few, many = torch.cat([layer(row[None]) for row in x]), layer(x)
    close(few, x @ layer(torch.eye(64)))
    assert 1e-3 < (many - few).norm() / few.norm() < 0.05
    layer.fixed = True
    close(layer(x), few)


@pytest.mark.parametrize("scheme", NAMES.values())
def test_what_is_not_finite_is_refused(scheme: str) -> None:
    config = tiny(**WIDE)
    with torch.device("meta"):
        model = Transformer(config, scheme)
    damaged = (
        (name, Stored(tensor.fill_(float("inf")) if ".wo." in name else tensor))
        for name, tensor in random_tensors(config)
    )
    with pytest.raises(
        ModelError, match=r"'layers.0.attention.wo.weight' of the checkpoint is damaged: a value is not"
    ):
        weights.load(model, shard_of(config), "half", damaged, torch.float32, CPU, lambda _: None)


def network(config: ModelConfig, scheme: str) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config, scheme)
    weights.load(model, shard_of(config), "half", random_stored(config), torch.float32, CPU, lambda _: None)
    return model.eval()


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [("none", {"n_experts": 4, "n_experts_per_token": 2}), *((scheme, {}) for scheme in ("none", *NAMES.values()))],
    ids=str,
)
def test_network_in_the_kernels(scheme: str, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Triton's interpreter few rows, in fixed tiles, and many rows agree with PyTorch alone."""
    product = pytest.importorskip("model.kernels.cuda.product", exc_type=ImportError)
    monkeypatch.setattr(product, "TILES", small_tiles())
    config = tiny((None,), **(WIDE | changes))
    model, plain = network(config, scheme), network(config, scheme)
    for module in model.modules():
        if isinstance(module, MoE):
            module.reserve(torch.float32, CPU)
    weights.load(model, shard_of(config), "half", random_stored(config), torch.float32, CPU, lambda _: None)
    expected = Driver(plain, SdpaAttention()).whole(TOKENS[:3])
    monkeypatch.setattr(triton, "serves", lambda x: True)
    close(Driver(model, SdpaAttention()).whole(TOKENS[:3]), expected)
    selection.fix_tiles(model)
    close(Driver(model, SdpaAttention()).whole(TOKENS[:3], chunk=2), expected)
