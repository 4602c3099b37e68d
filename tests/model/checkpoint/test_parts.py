"""Parts of a matrix, in every format: together they are the whole, whose values come from the format's rules."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.checkpoint.blocks import Blocks
from model.checkpoint.stored import Stored
from tests.model.checkpoint.gguf_files import KINDS, stored
from tests.model.checkpoint.quantized_files import FORMS, matrix

CUTS = {
    "within groups of 64": (0, 96, 288, 512),
    "within blocks and words": (0, 20, 273, 512),
}
"""Where parts of 512 channels begin and end."""
every_cut = pytest.mark.parametrize("bounds", CUTS.values(), ids=CUTS)


def floats(found: Stored) -> Tensor:
    return found.floats().float()


def check(found: Stored, wanted: Tensor, bounds: tuple[int, ...]) -> None:
    ranges = [range(*pair) for pair in pairwise(bounds)]
    parts = [found.part(columns=columns) for columns in ranges]
    assert [tuple(part.shape) for part in parts] == [(len(wanted), len(columns)) for columns in ranges]
    assert torch.equal(torch.cat([floats(part) for part in parts], dim=1), wanted)
    assert torch.equal(floats(found.part(range(16, 48), ranges[1])), wanted[16:48, bounds[1] : bounds[2]])
    assert torch.equal(floats(found.part(rows=range(8, 33))), wanted[8:33])
    order = torch.randperm(len(wanted), generator=torch.Generator().manual_seed(0))
    assert torch.equal(floats(found[order]), wanted[order])
    middle = found.part(columns=range(64, 512))
    assert torch.equal(floats(middle.part(columns=range(32, 96))), wanted[:, 96:160])  # a part of a part


@every_cut
@pytest.mark.parametrize("name", FORMS)
def test_parts_of_quantized_safetensors(name: str, bounds: tuple[int, ...]) -> None:
    found, wanted = matrix(name, 64, 512)
    if found.layout == "fp4":  # float32 rounds the quotient of its scales
        torch.testing.assert_close(found.floats(), wanted, rtol=2**-22, atol=0.0)
        wanted = found.floats()
    check(found, wanted, bounds)


@every_cut
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_gguf(kind: str, bounds: tuple[int, ...], tmp_path: Path) -> None:
    """All kinds but those of 32 channels have blocks of 256, of which some cuts take pieces."""
    check(*stored({"q": kind, "k": "Q4_0"}, tmp_path / "m.gguf", n_out=64)["q"], bounds)


BLOCKS = [name for name in FORMS if any(word in name for word in ("awq", "gptq", "int4", "packed g"))]


@pytest.mark.parametrize("name", [name for name in BLOCKS if "ordered" not in name])
def test_parts_of_whole_blocks_keep_their_integers(name: str) -> None:
    """No part is quantized again, although parts of 96 channels cut groups of 64 and of 128."""
    found, _ = matrix(name, 64, 512)
    whole = found.blocks()
    assert whole is not None
    for columns in (range(96), range(96, 192), range(192, 512)):
        same_blocks(found.part(columns=columns), whole, columns)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q5_1", "Q4_K", "IQ4_XS", "Q6_K"])
def test_parts_of_a_gguf_keep_the_integers_of_the_whole(kind: str, tmp_path: Path) -> None:
    found, _ = stored({"q": kind, "k": "Q4_0"}, tmp_path / "m.gguf", n_out=64)["q"]
    whole = found.blocks()
    for columns in (range(96), range(96, 352), range(352, 512)):
        same_blocks(found.part(columns=columns), whole, columns)


def same_blocks(part: Stored, whole: Blocks | None, columns: range) -> None:
    """The part in blocks is these blocks of the whole."""
    found = part.blocks()
    assert whole is not None
    assert found is not None
    own = slice(columns.start // 32, columns.stop // 32)
    assert torch.equal(found.quants, whole.quants[:, own])
    assert torch.equal(found.scales, whole.scales[:, own])
    if whole.mins is not None:
        assert found.mins is not None
        assert torch.equal(found.mins, whole.mins[:, own])


@pytest.mark.parametrize("name", ["ct int8 channel", "ct int8 packed channel", "ct fp8 channel", "fp8 tensor"])
def test_parts_of_rows_with_one_scale_keep_it(name: str) -> None:
    found, _ = matrix(name, 64, 512)
    dtype = torch.float8_e4m3fn if "fp8" in name else torch.int8
    part = found.part(columns=range(64, 192))
    whole, own = found.by_row(dtype), part.by_row(dtype)
    assert whole is not None
    assert own is not None
    values, scales = whole
    assert torch.equal(own[0].view(torch.uint8), values.view(torch.uint8)[:, 64:192])
    assert torch.equal(own[1], scales)
