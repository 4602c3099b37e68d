"""What computes a step in one call, its attention against the reference, and the other ranks of its layers."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention.rope import RopeRows
from model.attention.sdpa import SdpaAttention
from model.batch import PageTable, Slice, StepBatch
from model.kernels.cpu import native
from model.network.compiled import compiled_network
from model.sampling_params import SamplingParams
from model.sharding.layout import Layout
from model.step.packing import pack
from tests.model.attention.attending import best
from tests.model.attention.reference import ReferenceAttention
from tests.model.driving import CPU, Driver, checkpoint, quantized, random_model, tiny
from tests.model.network import rank_cases


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


class HalfGroup:
    """The first of two ranks. The other one has nothing to add; `waiting` is what happens until it answers."""

    place, device = Layout(2).place(0), CPU

    def __init__(self, waiting: Callable[[], None]) -> None:
        self.waiting = waiting

    def sum(self, partial: Tensor) -> Tensor:
        self.waiting()
        return partial

    def gather(self, columns: Tensor, widths: Any) -> None:
        return None


def half_of(waiting: Callable[[], None]) -> Driver:
    """The part of the first of two ranks, whose steps are computed in one call."""
    group: Any = HalfGroup(waiting)
    return rank_cases.driver(group, checkpoint(tiny((None,), dim=64, head_dim=32, hidden_dim=128)), "int8")


def test_a_thread_may_use_the_kernels_while_a_step_waits_for_ranks() -> None:
    """It neither waits for the ranks, nor uses the memory of the step."""
    results: list[Tensor] = []
    alone = half_of(lambda: None)
    expected = alone.whole(range(20))

    def compute() -> None:
        results.append(quantized_driver.whole(range(20)))

    def waiting() -> None:
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join(30)

    quantized_driver = Driver(quantized("int8"), best())
    quantized_driver.compile()
    before = quantized_driver.whole(range(20))
    assert torch.equal(half_of(waiting).whole(range(20)), expected)
    assert len(results) == 3  # embeddings, attention, feed-forward
    assert all(torch.equal(each, before) for each in results)


def test_a_step_leaves_no_cycle_that_holds_its_rows() -> None:
    """The collector is frozen in the engine, and runs seldom: cycles would hold the rows of many steps."""
    alive: list[weakref.ref[Tensor]] = []
    driver = half_of(lambda: None)
    assert driver.model.group is not None
    add = driver.model.group.sum

    def watched(partial: Tensor) -> Tensor:
        alive.append(weakref.ref(partial))
        return add(partial)

    driver.model.group.sum = watched  # type: ignore[method-assign]
    gc.disable()
    try:
        for _ in range(3):
            driver.whole(range(20))
        assert len(alive) == 9
        assert not any(ref() is not None for ref in alive)
    finally:
        gc.enable()


def test_a_step_ends_with_the_error_of_a_rank_that_is_lost() -> None:
    """The kernels serve on: their lock is free."""
    left = iter(range(2))

    def waiting() -> None:
        if next(left, None) is None:
            raise RuntimeError("connection closed by peer")

    with pytest.raises(RuntimeError, match="connection closed by peer"):
        half_of(waiting).whole(range(20))
    found, expected = (half_of(lambda: None).whole(range(20)) for _ in range(2))
    assert torch.equal(found, expected)
    assert native.needed().scratch_bytes > 0
