"""The int4 scheme: rounding by hand, products against float64, and the choice between 4 and 8 bits."""

import numpy as np
import pytest
import torch
from torch import Tensor

from model.checkpoint.gguf.index import STORED, BlockStorage
from model.checkpoint.stored import Stored
from model.linear.int4 import Int4Linear, quantize4, quantize8
from tests.model.encoding import encoded


def test_four_bits_are_fifteen_steps_from_the_least() -> None:
    blocks = quantize4(torch.tensor([[-1.0, 2.0, 0.5, 0.58, *[0.0] * 28], [3.0] * 32]))
    assert blocks.mins is not None
    assert (blocks.mins[0, 0].item(), blocks.scales[0, 0].item()) == (-1.0, pytest.approx(0.2, rel=1e-3))
    low = [int(byte) & 15 for byte in blocks.quants[0, 0]]
    assert low == [0, 15, 8, 8, *[5] * 12]  # (0.5 + 1) / 0.19995 = 7.502
    assert blocks.floats()[1].tolist() == [3.0] * 32


def test_eight_bits_are_127_steps_of_magnitude() -> None:
    blocks = quantize8(torch.tensor([[-12.7, 0.1, 0.26, 12.7, *[0.0] * 28], [0.0] * 32]))
    assert blocks.mins is None
    assert blocks.quants[0, 0, :5].tolist() == [-127, 1, 3, 127, 0]
    assert blocks.quants[1].unique().tolist() == [0]


@pytest.mark.parametrize("magnitude", [1e-7, 1e-5, 1.0, 1e4])
def test_weights_come_within_half_a_step(magnitude: float) -> None:
    """A step and a minimum are float16: near their smallest values their own rounding is added."""
    weight = torch.randn(300, 64, generator=torch.Generator().manual_seed(0)) * magnitude
    for encode, steps in ((quantize4, 15), (quantize8, 254)):
        reach = weight.unflatten(1, (2, 32))
        step = (reach.amax(2) - reach.amin(2)) / 15 if steps == 15 else 2 * reach.abs().amax(2) / 254
        allowed = 0.5 * step + step * steps * 2**-10 + 127 * 2**-24
        error = (encode(weight).floats() - weight).unflatten(1, (2, 32)).abs().amax(2)
        assert (error <= allowed).all()


def brute_force(x: Tensor, weight: Tensor) -> np.ndarray:
    """The products of activations rounded to 127 steps in each group of 32. All else is float64."""
    groups = x.double().numpy().reshape(len(x), -1, 32)
    steps = np.abs(groups).max(axis=2, keepdims=True) / 127
    rounded = np.rint(np.divide(groups, steps, out=np.zeros_like(groups), where=steps > 0)) * steps
    return rounded.reshape(len(x), -1) @ weight.double().numpy().T


def stored(weight: Tensor, kind: str) -> Stored:
    """A matrix as a file has it: in a kind of GGUF, as floats among these, or as floats of safetensors."""
    if kind in ("float", "F16"):
        return Stored(weight) if kind == "float" else Stored(weight.half(), "groups")
    return encoded(weight, kind)


@pytest.mark.parametrize("kinds", [("Q4_1",), ("Q8_0", "Q4_1"), ("Q4_1", "float"), ("F16", "Q8_0"), ("Q5_0", "Q4_1")])
def test_products_are_those_of_the_quantized_values(kinds: tuple[str, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    weight, x = torch.randn(40, 96, generator=generator), torch.randn(7, 96, generator=generator)
    x[0, :32] = 0
    pieces = [stored(rows, kind) for rows, kind in zip(weight.chunk(len(kinds)), kinds, strict=True)]
    made, meant, first = Int4Linear(96, 40), [], 0
    for piece, kind in zip(pieces, kinds, strict=True):
        made.take(first, piece)
        first += len(piece)
        floats = piece.floats().float()
        again = {"float": quantize4, "F16": quantize8}.get(kind)  # Q5_0 fits without it
        meant.append(again(floats).floats() if again else floats)
    expected = brute_force(x, torch.cat(meant))
    np.testing.assert_allclose(made(x).numpy(), expected, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(made(x[i : i + 1])[0], made(x)[i]) for i in range(7))
    onto = torch.ones(7, 40)
    np.testing.assert_allclose(made(x, onto=onto).numpy(), expected + 1, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "wrong", "layout"),
    [("Q5_1", BlockStorage(8), "q8, the rows fit q8_min"), ("Q5_0", BlockStorage(4), "q4, the rows fit q8")],
)
def test_a_wrong_row_for_a_kind_of_a_file_is_an_error(
    kind: str, wrong: BlockStorage, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C would write records of the size of the decoded rows, beyond memory for smaller ones."""
    monkeypatch.setitem(STORED, kind, wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"weights have the layout {layout}"):
        Int4Linear(64, 16).take(0, encoded(torch.randn(16, 64), kind))
