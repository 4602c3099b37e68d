"""Products of the parts of a matrix, as the ranks of a stage compute them, in every scheme, at their odd widths."""

import pytest
import torch
from torch import Tensor, nn

from model.checkpoint.stored import Stored
from model.errors import OptionError
from model.linear.base import Projection
from model.linear.compiled import Compiled
from model.linear.floats import WeightsOnly
from model.linear.schemes import SCHEMES
from model.linear.selection import make_linear
from tests.model.driving import CPU

N_OUT, N_ROWS = 40, 5
WIDTHS = {"int4": (32, 96), "int4-weights": (64, 192)}
"""Channels of a part. All other schemes take any number: int8 rounds activations in groups of 64."""
WEIGHT_ERRORS = {"none": 2**-20, "bfloat16": 2**-9, "fp8": 2**-4, "int8": 1 / 254}
WEIGHT_ERRORS |= {"int4": 1 / 15, "int4-weights": 1 / 14}
"""The error of a weight at most, as a share of the greatest in its row of the part."""
INPUT_ERRORS = {"bfloat16": 2**-9, "int8": 1 / 254, "int4": 1 / 254}
"""The error of an activation at most, as a share of the greatest in its row."""
CASES = [(scheme, width) for scheme in SCHEMES for width in WIDTHS.get(scheme, (24, 48, 96))]


def part_of(weight: Tensor, columns: range, scheme: str) -> Projection:
    """The projection of a rank that holds these columns."""
    made = make_linear(len(columns), N_OUT, scheme=scheme)
    own = Stored(weight).part(columns=columns)
    if isinstance(made, WeightsOnly):
        made.assign_weights(made.allocate((), torch.float32, CPU))
    if isinstance(made, WeightsOnly | Compiled):
        made.take(0, own)
    else:
        made.weight = nn.Parameter(own.values, requires_grad=False)
    return made


@pytest.mark.parametrize(("scheme", "width"), CASES)
def test_partial_sums_add_up(scheme: str, width: int) -> None:
    """To the product in float64, but for what a scheme rounds in weights and in activations."""
    generator = torch.Generator().manual_seed(width)
    weight, x = torch.randn(N_OUT, 4 * width, generator=generator), torch.randn(N_ROWS, 4 * width, generator=generator)
    total, allowed = torch.zeros(N_ROWS, N_OUT), torch.zeros(N_ROWS, N_OUT)
    for rank in range(4):
        columns = range(rank * width, (rank + 1) * width)
        w, own = weight[:, columns.start : columns.stop], x[:, columns.start : columns.stop].contiguous()
        projection = part_of(weight, columns, scheme)
        y = projection(own)
        total += y
        dw = WEIGHT_ERRORS[scheme] * w.abs().amax(dim=1)  # [n_out]
        dx = INPUT_ERRORS.get(scheme, 0.0) * own.abs().amax(dim=1, keepdim=True)  # [n, 1]
        allowed += own.square().sum(dim=1, keepdim=True) * dw**2 + dx**2 * w.square().sum(dim=1)
        if SCHEMES[scheme].compiled:
            assert torch.equal(projection(own[2:3]), y[2:3])
    error = (total - (x.double() @ weight.double().T)).square().mean()
    assert error <= allowed.mean() + 1e-10  # the errors are independent: their squares add up


@pytest.mark.parametrize(("scheme", "width"), [("int4", 24), ("int4-weights", 96)])
def test_a_width_that_a_scheme_cannot_store(scheme: str, width: int) -> None:
    with pytest.raises(OptionError, match=f"multiples of {SCHEMES[scheme].multiple} channels.*, one has {width}"):
        part_of(torch.ones(N_OUT, 4 * width), range(width, 2 * width), scheme)
