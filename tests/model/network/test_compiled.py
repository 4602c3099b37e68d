"""A step in one call gives the bits of layer after layer."""

from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention.paged import PagedAttention
from model.attention.rope import RopeRows
from model.attention.sdpa import SdpaAttention
from model.batch import PageTable, Slice, StepBatch
from model.config import QueryTemperature, Rope, RopeScaling
from model.kernels.cpu import native
from model.network.compiled import compiled_network
from model.sampling_params import SamplingParams
from model.step.packing import pack
from tests.model.attention.attending import best
from tests.model.attention.reference import ReferenceAttention
from tests.model.driving import CPU, Driver, quantized, random_model, tiny

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
        super().__init__(native.needed())
        self._outputs = outputs

    def attend(self, *inputs: Any) -> Tensor:
        self._outputs.append(super().attend(*inputs))
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
    model, attention, outputs = quantized(scheme, **PECULIAR), best(), []
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
    paged, reference = best(), ReferenceAttention()
    results = []
    for backend, dtype in ((paged, kv_dtype), (reference, torch.float32)):
        (inputs,) = pack(StepBatch((item,)), backend.page_size, [20], CPU).pools
        cache = backend.allocate((2, 2, 16), dtype, CPU)
        results.append(backend.attend(qkv.clone(), 4, rope, cache, backend.prepare(inputs)))
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.int8: 5e-2}[kv_dtype]
    torch.testing.assert_close(*results, atol=tolerance, rtol=tolerance)


def test_others_are_left_alone() -> None:
    """Floats and other backends run layer by layer."""
    paged = best()
    for model, attention in (
        (random_model(tiny((None,), n_experts=4, n_experts_per_token=2)), paged),
        (random_model(tiny((None,))), paged),
        (quantized("int8"), SdpaAttention()),
    ):
        assert compiled_network(model, attention, (driver := Driver(model, attention)).pools, driver.tables, 4) is None
