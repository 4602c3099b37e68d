"""Which products a GPU computes in which kernels, and what becomes of kernels that fail."""

import pytest
import torch
from torch import nn

from model.errors import OptionError
from model.kernels import cuda as triton
from model.linear.schemes import SCHEMES
from model.linear.selection import make_linear
from model.network import kernels
from model.network.kernels import kernel_errors, row_counts, try_out
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


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the weights are memory that nobody has written
def test_products_are_tried_out_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that fails for many rows only is found, and the error names the way out."""
    from triton.runtime.errors import OutOfResources

    from model.kernels.cuda import product

    plain, seen = product.product, []

    def fails(x: torch.Tensor, *args: object, **more: object) -> torch.Tensor:
        seen.append(len(x))
        if len(x) > 32:
            raise OutOfResources(119000, 101376, "shared memory")
        return plain(x, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(product, "product", fails)
    message = r"--quantize fp8: a kernel does not work on this GPU \(OutOfResources: .*Required: 119000, Hardware lim"
    with pytest.raises(OptionError, match=message):
        try_out(SCHEMES["fp8"], 64, torch.float32, CPU)
    assert seen[0] == 1
    assert max(seen) > 32


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="something else"), kernel_errors("--quantize none"):
        raise RuntimeError("something else")
