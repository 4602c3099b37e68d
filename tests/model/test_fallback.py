"""What serves where nothing is compiled: bfloat16 projections in oneDNN's layout, near the float32 network."""

import pytest
import torch

from model import weights
from model.attention.sdpa import SdpaAttention
from model.quant.none import Linear, packable
from model.transformer import Transformer
from tests.model.driving import CPU, Driver, random_model, random_tensors, tiny

needs_onednn = pytest.mark.skipif(
    not packable(torch.empty(1, 1, dtype=torch.bfloat16)), reason="oneDNN does not multiply bfloat16 here"
)


def made(weight: torch.Tensor) -> Linear:
    layer = Linear(weight.shape[1], len(weight)).requires_grad_(False)
    layer.weight.data = weight
    layer.pack()
    return layer


@needs_onednn
@pytest.mark.parametrize("n_rows", [1, 2, 32, 33, 100])
@pytest.mark.parametrize("shape", [(40, 100), (5, 7), (256, 64)], ids=str)
def test_packed_weights_give_the_product_of_any_number_of_rows(shape: tuple[int, int], n_rows: int) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(shape).bfloat16(), torch.randn(n_rows, shape[1]).bfloat16()
    layer = made(weight)
    assert layer.weight is None
    torch.testing.assert_close(layer(x).double(), x.double() @ weight.double().T, rtol=2**-8, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_formats_stay_as_they_are(dtype: torch.dtype) -> None:
    weight = torch.randn(6, 4).to(dtype)
    assert torch.equal(made(weight)(torch.eye(4, dtype=dtype)), weight.T)


@needs_onednn
@pytest.mark.parametrize("changes", [{}, {"tied_head": True}, {"n_experts": 4, "n_experts_per_token": 4}], ids=str)
def test_network_is_near_its_float32_self(changes: dict[str, object]) -> None:
    config = tiny((None, 9), **changes)
    with torch.device("meta"):
        model = Transformer(config)
    weights.load(model, config, "half", random_tensors(config), torch.bfloat16, CPU, lambda _: None)
    assert all(layer.reordered is not None for layer in model.modules() if isinstance(layer, Linear))
    tokens = [(7 * i) % 64 for i in range(50)]
    expected = Driver(random_model(config), SdpaAttention()).whole(tokens)
    for chunk in (None, 1, 7):
        logits = Driver(model, SdpaAttention(), shuffle=1).whole(tokens, chunk)
        assert torch.nn.functional.cosine_similarity(logits, expected).min() > 0.99
