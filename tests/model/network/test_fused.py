"""All layers in one call give the bits of layer after layer."""

import inspect
from collections.abc import Callable
from typing import get_type_hints

import pytest
import torch

from model.attention import choose
from model.kernels.cpu import native
from model.linear.base import Projection
from model.linear.selection import PROJECTIONS
from model.network import weights
from model.network.fused import fuse
from model.network.transformer import Transformer
from tests.model.driving import CPU, EXPERTS, Driver, random_model, random_tensors, tiny

TOKENS = [(7 * i) % 64 for i in range(70)]


def quantized(scheme: str, **changes: object) -> Transformer:
    config = tiny((None, 9), **changes)
    with torch.device("meta"):
        model = Transformer(config, scheme)
    weights.load(model, config, "half", random_tensors(config), torch.float32, CPU, lambda _: None)
    return model.eval()


@pytest.mark.parametrize("scheme", ["int8", "int4", "bfloat16"])
@pytest.mark.parametrize("chunk", [None, 1, 33])
@pytest.mark.parametrize("experts", [{}, {**EXPERTS, "expert_hidden_dim": 160}], ids=["dense", "sparse"])
def test_bits_are_the_same(scheme: str, chunk: int | None, experts: dict[str, int]) -> None:
    model = quantized(scheme, dim=64, hidden_dim=96, **experts)
    attention = choose("paged", CPU)[1]
    plain, driver = Driver(model, attention), Driver(model, attention, shuffle=1)
    driver.fused = fuse(model, attention, driver.pools)
    assert driver.fused is not None
    assert torch.equal(driver.whole(TOKENS, chunk), plain.whole(TOKENS, chunk))


@pytest.mark.parametrize("experts", [{}, EXPERTS], ids=["dense", "sparse"])
def test_several_sequences_share_a_step(experts: dict[str, int]) -> None:
    model, attention = quantized("int8", **experts), choose("paged", CPU)[1]
    driver = Driver(model, attention)
    alone = driver.whole(TOKENS)
    driver.fused = fuse(model, attention, driver.pools)
    first, second = driver.start(TOKENS), driver.start(TOKENS[:40])
    parts = driver.step([(first, 50), (second, 3)]) + driver.step([(second, 37), (first, 20)])
    assert torch.equal(torch.cat((parts[0], parts[3])), alone)
    assert torch.equal(torch.cat((parts[1], parts[2])), alone[:40])


def test_calls_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense layer takes five calls (four products and the attention), one of experts four. All layers together take
    one, the head one more.
    """
    kernels = native.kernels()
    assert kernels is not None
    called: list[str] = []

    def counted(name: str) -> Callable[..., None]:
        function = getattr(kernels, name)
        return lambda *arguments: (called.append(name), function(*arguments))[1]

    for name in ("_linear", "_attention", "_network", "_experts"):
        monkeypatch.setattr(kernels, name, counted(name))
    model, attention = quantized("int8", **EXPERTS), choose("paged", CPU)[1]
    driver = Driver(model, attention)
    driver.whole(TOKENS)
    attend = ["_linear", "_attention", "_linear"]
    assert called == [*attend, "_linear", "_linear", *attend, "_experts", "_linear"]
    called.clear()
    driver.fused = fuse(model, attention, driver.pools)
    driver.whole(TOKENS)
    assert called == ["_network", "_linear"]


@pytest.mark.parametrize("projection", PROJECTIONS.values(), ids=lambda kind: kind.__name__)
def test_no_projection_takes_another(projection: type[Projection]) -> None:
    for name, method in inspect.getmembers(projection, inspect.isfunction):
        if method.__module__.startswith("model."):
            kinds = [hint for key, hint in get_type_hints(method).items() if key != "return"]
            assert not [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Projection)], name


def test_others_are_left_alone() -> None:
    """Floats and other backends run layer by layer."""
    paged = choose("paged", CPU)[1]
    for model, attention in (
        (random_model(tiny((None,), n_experts=4, n_experts_per_token=2)), paged),
        (random_model(tiny((None,))), paged),
        (quantized("int8"), choose("sdpa", CPU)[1]),
    ):
        assert fuse(model, attention, Driver(model, attention).pools) is None
