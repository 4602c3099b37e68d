"""LoRA adapters on a GPU under Triton's interpreter, against float64 and against the rows alone."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from model.kernels import cuda as triton
from model.kernels.cuda import adapters
from model.network import lora
from model.network.lora import Lora, LowRank, LowRankPart, StepAdapters
from tests.model.kernels.triton_case import CPU, DTYPES, close, poisoned

N_IN, N_OUT = 150, 70


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    yield from poisoned()


def low_rank(rank: int, dtype: torch.dtype, *places: tuple[int, int]) -> LowRank:
    """A product with a part of `rank` ranks for each (first output, outputs)."""
    parts = [LowRankPart(first, i * rank, torch.randn(n, rank).to(dtype)) for i, (first, n) in enumerate(places)]
    return LowRank((torch.randn(len(places) * rank, N_IN) / 12).to(dtype), tuple(parts))


def changed(y: Tensor, x: Tensor, product: LowRank, row: int) -> Tensor:
    """Row `row` of y with an adapter, in float64."""
    u, found = product.a.double() @ x[row].double(), y[row].double()
    for first, rank, b in product.parts:
        found[first : first + len(b)] += b.double() @ u[rank : rank + b.shape[1]]
    return found


@DTYPES
def test_rows_of_several_adapters(dtype: torch.dtype) -> None:
    """Ranks, parts and numbers of rows fill no tile; the third adapter has nothing for this product."""
    torch.manual_seed(0)
    products = [low_rank(3, dtype, (0, 40), (40, 10), (50, 20)), low_rank(40, dtype, (5, 7), (64, 6)), None]
    step = [Lora(({} if one is None else {"wo": one},)) for one in products]
    owners = [i % 4 for i in range(40)]  # 3 is none
    rows = [np.flatnonzero(np.array(owners) == i) for i in range(3)]
    grouped = adapters.group(rows, np.stack([one.entries for one in step], axis=1), CPU)
    assert grouped.table.shape == (5, 3, adapters.ENTRY)
    x, y = torch.randn(40, N_IN).to(dtype), torch.randn(40, N_OUT).to(dtype)
    found = y.clone()
    adapters.add(found, x, grouped, lora.TARGETS.index("wo"))
    for row, owner in enumerate(owners):
        product = products[owner] if owner < 3 else None
        if product is None:
            assert torch.equal(found[row], y[row])
            continue
        close(found[row], changed(y, x, product, row))
        if row % 9:
            continue
        alone = y[row : row + 1].clone()
        one = adapters.group([np.array([0])], step[owner].entries[:, None], CPU)
        adapters.add(alone, x[row : row + 1], one, 1)
        assert torch.equal(alone[0], found[row]), "the bits of a row alone"


def test_outputs_of_no_part_keep_their_bits() -> None:
    adapter = Lora(({"wqkv": low_rank(2, torch.float32, (3, 4), (66, 2))},))
    y = torch.randn(5, N_OUT)
    found = y.clone()
    adapters.add(found, torch.randn(5, N_IN), adapters.group([np.arange(5)], adapter.entries[:, None], CPU), 0)
    same = found.eq(y).all(dim=0).nonzero().flatten().tolist()
    assert same == [i for i in range(N_OUT) if not (3 <= i < 7 or 66 <= i < 68)]


def test_a_step_uses_the_kernels_where_they_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    product = low_rank(4, torch.float32, (0, N_OUT))
    adapter = Lora(({"w2": product}, {}), product)
    monkeypatch.setattr(triton, "serves", lambda x: True)
    step = StepAdapters.of([None, adapter], [1, 2], CPU)
    assert step is not None
    x, y = torch.randn(3, N_IN), torch.randn(3, N_OUT)
    for uses, expected in ((step.layer(0)["w2"], product), (step.head, product), (step.layer(1)["w2"], None)):
        found = y.clone()
        uses.add(found, x, None)  # type: ignore[union-attr]
        for row in range(3):
            if expected is None or row == 0:
                assert torch.equal(found[row], y[row])
            else:
                close(found[row], changed(y, x, expected, row))
