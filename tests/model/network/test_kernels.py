"""Which products a GPU computes in which kernels, and what becomes of kernels that fail."""

import pytest
import torch
from torch import nn

from model.kernels import cuda as triton
from model.linear.base import RMSNorm
from model.linear.selection import make_linear
from model.network import kernels
from model.network.kernels import leave_to_torch, row_counts
from model.network.moe import MoE
from tests.model.driving import CPU

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "serves", lambda x: True)


def test_row_counts_are_on_both_sides_of_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_kernel", lambda kind, n_rows: (n_rows > 5, n_rows > 8, n_rows > 90))
    part = make_linear(64, 64)
    part.assign_weights(part.allocate((), torch.float32, CPU))  # type: ignore[attr-defined]
    assert row_counts(nn.ModuleList([part]), 20) == [1, 5, 6, 8, 9, 20]
    assert row_counts(nn.ModuleList([part]), 1) == [1]
    assert row_counts(nn.ModuleList(), 100) == [1, 100]


def test_kinds_that_are_left_to_torch() -> None:
    """Experts that stay apart are computed one after another, and each part by PyTorch if products fail too."""
    block = MoE(64, 64, 4, 2)
    assert block.gate.in_triton(torch.ones(1))  # type: ignore[operator]
    leave_to_torch(block, {"experts", "attention"})
    assert block.by_torch
    assert block.gate.in_triton(torch.ones(1))  # type: ignore[operator]
    leave_to_torch(block, {"products"})
    assert not block.gate.in_triton(torch.ones(1))  # type: ignore[operator]
    norm = RMSNorm(4, 1e-5)
    leave_to_torch(norm, {"norms"})
    norm.weight.data = torch.ones(4)
    assert norm(torch.ones(1, 4)).isfinite().all()  # no kernel runs on a CPU
