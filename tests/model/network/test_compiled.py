"""A step in one call gives the bits of layer after layer."""

import inspect
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

from model.attention import choose
from model.attention.paged import PagedAttention
from model.attention.rope import RopeRows
from model.batch import PageTable, Slice, StepBatch
from model.config import QueryTemperature, Rope, RopeScaling
from model.linear.base import Projection
from model.linear.selection import PROJECTIONS
from model.network.compiled import compiled_network
from model.sampling_params import SamplingParams
from model.step.packing import pack
from tests.model.attention.reference import ReferenceAttention
from tests.model.driving import CPU, Driver, network, quantized, random_adapter, random_model, tiny

TARGETS_OF = (("wqkv",), ("wqkv", "wo"), ("w13", "w2"), ("wqkv", "wo", "w13", "w2"))
TOKENS = [(7 * i) % 64 for i in range(70)]


PECULIAR = {
    "rope_dim": 4,
    "full_rope": Rope(1e6, 4, scaling=RopeScaling("yarn", 4.0, 16)),
    "query_temperature": QueryTemperature(16, 0.5),
}
"""A part of a head rotates, layers differ in their RoPE, and the temperature of queries takes five values."""


class Recorded(PagedAttention):
    """The kernels' attention, which records the outputs of all layers."""

    def __init__(self, outputs: list[Tensor]) -> None:
        super().__init__()
        self._outputs = outputs

    def _attend(self, *inputs: Any) -> Tensor:
        self._outputs.append(super()._attend(*inputs))
        return self._outputs[-1]


class Compared(ReferenceAttention):
    """The reference, which compares each layer's output with a recorded one, and goes on with the latter.

    With its own, a difference of 5e-8 may grow to 7e-3: some processors round activations to bfloat16 for the next
    product, and two numbers on both sides of a boundary become neighbours in bfloat16.
    """

    def __init__(self, outputs: list[Tensor]) -> None:
        self._outputs = outputs

    def attend(self, *inputs: Any) -> Tensor:
        recorded = self._outputs.pop(0)
        torch.testing.assert_close(super().attend(*inputs), recorded, atol=1e-5, rtol=1e-5)
        return recorded


@pytest.mark.parametrize("scheme", ["int8", "bfloat16"])
def test_bits_with_two_ropes_and_a_query_temperature(scheme: str) -> None:
    """The kernels' attention has the bits of one token after the other, fused or not, and agrees with the reference."""
    model, attention, outputs = quantized(scheme, **PECULIAR), choose("paged", CPU)[1], []
    plain, driver = Driver(model, Recorded(outputs)), Driver(model, attention, shuffle=1)
    driver.compile()
    whole = plain.whole(TOKENS)
    for chunk in (None, 1, 33):
        assert torch.equal(driver.whole(TOKENS, chunk), whole)
    assert torch.equal(Driver(model, Compared(outputs)).whole(TOKENS), whole)
    assert not outputs
    for name in PECULIAR:
        others = {key: value for key, value in PECULIAR.items() if key != name}
        if name == "rope_dim":
            others["full_rope"] = Rope(1e6, 8, scaling=RopeScaling("yarn", 4.0, 16))
        assert (Driver(quantized(scheme, **others), attention).whole(TOKENS) - whole).abs().max() > 0.01


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_the_kernel_multiplies_queries_as_the_reference_does(kv_dtype: torch.dtype) -> None:
    """The tolerance is the rounding of the cache's format."""
    torch.manual_seed(0)
    qkv, rope = torch.randn(45, 4 + 2 * 2, 16), RopeRows(torch.randn(45, 2, 8), 1 + torch.rand(45))
    item = Slice(0, [0] * 45, 45, 0, 45, (PageTable(0, (1, 0)),), SamplingParams())
    paged, reference = choose("paged", CPU)[1], ReferenceAttention()
    results = []
    for backend, dtype in ((paged, kv_dtype), (reference, torch.float32)):
        (inputs,) = pack(StepBatch((item,)), backend.page_size, [20], CPU).pools
        cache = backend.allocate((2, 2, 16), dtype, CPU)
        results.append(backend.attend_unrotated(qkv.clone(), 4, rope, cache, backend.prepare(inputs)))
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.int8: 5e-2}[kv_dtype]
    torch.testing.assert_close(*results, atol=tolerance, rtol=tolerance)


def test_sixteen_requests_over_four_adapters_equal_each_alone(short_model: Path) -> None:
    """The shapes of SmolLM2, two steps each: a part of the prompt, then the rest. Every fifth request has none."""
    torch.manual_seed(0)
    driver = network(short_model, "int8")
    config = driver.model.config
    made = [
        random_adapter(config, rank, targets).pack() for rank, targets in zip((1, 8, 16, 40), TARGETS_OF, strict=True)
    ]
    chosen = [[None, *made][i % 5] for i in range(16)]
    driver.compile()
    riders = [driver.start(TOKENS[i : i + 9], adapter) for i, adapter in enumerate(chosen)]
    first = driver.step([(rider, 1 + i % 5) for i, rider in enumerate(riders)])
    second = driver.step([(rider, 9 - rider.done) for rider in riders])
    for i, adapter in enumerate(chosen):
        alone = driver.step([(driver.start(TOKENS[i : i + 9], adapter), 9)])[0]
        assert torch.equal(torch.cat((first[i], second[i])), alone)
    changed = [driver.step([(driver.start(TOKENS[:9], adapter), 9)])[0] for adapter in (None, *made)]
    assert all((one - changed[0]).abs().max() > 0.1 for one in changed[1:])


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
        assert compiled_network(model, attention, (driver := Driver(model, attention)).pools, driver.tables, 4) is None
