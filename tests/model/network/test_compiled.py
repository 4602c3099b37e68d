"""What computes a step in one call, and its attention against the reference."""

import pytest
import torch

from model.attention.rope import RopeRows
from model.attention.sdpa import SdpaAttention
from model.batch import PageTable, Slice, StepBatch
from model.network.compiled import compiled_network
from model.sampling_params import SamplingParams
from model.step.packing import pack
from tests.model.attention.attending import best
from tests.model.attention.reference import ReferenceAttention
from tests.model.driving import CPU, Driver, quantized, random_model, tiny


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
