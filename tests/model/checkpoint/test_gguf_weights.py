"""GGUF's matrices as weights. Oracles: transformers' models, the gguf package's decoders."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from model.checkpoint.blocks import Blocks, widest
from model.checkpoint.gguf.index import FLOATS, READABLE, Index
from model.checkpoint.gguf.index import KINDS as SIZES
from model.checkpoint.gguf.open import open_gguf
from model.checkpoint.gguf.values import FEW
from model.kernels.cpu import native
from model.linear.int4 import Int4Linear
from tests.model.checkpoint.gguf_files import KINDS, VOCAB, save, stored
from tests.model.driving import network


def test_every_kind_that_is_read_is_tested() -> None:
    assert sorted(KINDS) == sorted(READABLE)


def test_kinds_are_those_of_the_package() -> None:
    """Numbers and sizes, and that it has a decoder: also of the kinds that a newer package brings."""
    theirs = {kind.name: (int(kind), *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    assert {name: sizes for name, sizes in SIZES.items() if name != "Q2_0"} == theirs
    for name in theirs.keys() - FEW.keys() - FLOATS.keys():
        block = np.zeros((1, SIZES[name][2]), np.uint8)
        with nullcontext() if name in READABLE else pytest.raises(NotImplementedError):
            dequantize(block, GGMLQuantizationType[name])


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_of_a_quantized_file_mean_what_the_package_says(kind: str, tmp_path: Path) -> None:
    found = stored({"q": kind, "k": "Q4_0"}, tmp_path / "m.gguf")
    matrix, expected = found["q"]
    assert matrix.layout == ("groups" if kind in FLOATS else "gguf")
    assert matrix.is_blocks == (kind in ("Q4_0", "Q4_1", "Q8_0"))
    assert matrix.shape == (300, 512)
    assert torch.equal(matrix.floats(), expected)


@pytest.mark.parametrize("kind", ["Q1_0", "Q2_0", "Q5_0", "Q5_1", "IQ4_NL", "Q4_K", "Q5_K", "IQ4_XS"])
def test_blocks_become_groups_without_another_quantization(kind: str, tmp_path: Path) -> None:
    """Exactly, or with the float16 rounding of a group's scale and minimum."""
    matrix, expected = stored({"q": kind}, tmp_path / "m.gguf")["q"]
    blocks = matrix.blocks()
    assert blocks is not None
    assert blocks.quants.shape[2] == (16 if kind in ("Q1_0", "Q2_0", "Q4_K") else 32)
    if kind in ("Q1_0", "Q2_0", "Q5_0", "Q5_1", "IQ4_NL"):
        assert torch.equal(blocks.floats(), expected)
        return
    rounding = (blocks.integers() * blocks.scales.float()[:, :, None]).abs()
    if blocks.mins is not None:
        rounding += blocks.mins.float().abs()[:, :, None]
    assert ((blocks.floats() - expected).abs() <= 2**-10 * rounding.flatten(1)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_scheme_gets_every_kind(kind: str, tmp_path: Path) -> None:
    """Products of int4 against the package's values: activations and, where the kind needs it, weights in 8 bits."""
    matrix, expected = stored({"q": kind, "k": "Q4_0"}, tmp_path / "m.gguf")["q"]
    made, x = Int4Linear(512, 300), torch.randn(5, 512, generator=torch.Generator().manual_seed(1))
    made.take(0, matrix)
    exact = x.double() @ expected.double().T
    error = (made(x).double() - exact).norm() / exact.norm()
    assert error < 0.012


@pytest.mark.parametrize(
    ("kinds", "bits"),
    [
        (("Q4_0", "Q4_0"), 4),
        (("Q4_0", "Q4_1"), 4),
        (("Q8_0", "Q4_0"), 8),
        (("Q4_1", "Q4_0", "Q8_0"), 8),
    ],
)
def test_joined_blocks_mean_the_same(kinds: tuple[str, ...], bits: int, tmp_path: Path) -> None:
    found = stored(dict(zip("qkv", kinds, strict=False)), tmp_path / "m.gguf")
    matrices = [blocks for matrix, _ in found.values() if (blocks := matrix.blocks())]
    pieces = [blocks.in_form(widest(blocks.form for blocks in matrices)) for blocks in matrices]
    mins = [piece.mins for piece in pieces if piece.mins is not None]
    columns = (torch.cat([getattr(piece, name) for piece in pieces]) for name in ("quants", "scales"))
    whole = Blocks(*columns, torch.cat(mins) if mins else None)
    assert whole.quants.shape[2] * 8 == 32 * bits
    assert (whole.mins is not None) == ("Q4_1" in kinds)
    assert torch.equal(whole.floats(), torch.cat([expected for _, expected in found.values()]))


@pytest.mark.skipif(native.kernels() is None, reason="the index counts the memory of compiled kernels")
@pytest.mark.parametrize(
    "formats", [("Q4_0",), ("Q8_0", "Q4_0"), ("Q4_1", "Q5_0", "Q4_0"), ("Q5_1", "Q4_1"), ("BF16", "Q4_0")]
)
def test_the_index_counts_the_bits_that_are_stored(formats: tuple[str, ...], tmp_path: Path) -> None:
    save("llama", tmp_path / "model.gguf", formats)
    directory = tmp_path / "model.gguf"
    projections = [part for part in network(directory, "int4").model.modules() if isinstance(part, Int4Linear)]
    packed = [part.packed for part in projections if part.packed is not None and part.n_out % 16 == 0]
    entries = [entry for entry in open_gguf(directory).index.entries if not entry.name.startswith(("tok_", "output"))]
    bits = Index((), tuple(entries)).block_bits
    assert bits == sum(part.packed.numel() * 8 for part in packed) / sum(part.n_out * part.n_in for part in packed)


def test_a_file_of_floats_is_read_as_tensors(tmp_path: Path) -> None:
    found = stored({"q": "F16", "k": "BF16", "v": "F32"}, tmp_path / "m.gguf")
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    for (matrix, expected), dtype in zip(found.values(), dtypes, strict=True):
        assert matrix.layout == "floats"
        assert matrix.values.dtype is dtype
        assert torch.equal(matrix.values.float(), expected)


MIXED = ("Q4_0", "Q8_0", "Q4_1", "F16", "Q5_0")
"""So that wqkv and w13 get several."""


@pytest.mark.parametrize(
    ("kind", "formats"),
    [("llama", MIXED), ("llama tied", ("Q8_0",)), ("llama", ("BF16",)), ("mixtral", MIXED)],
)
def test_int4_runs_a_file_near_its_dequantized_self(kind: str, formats: tuple[str, ...], tmp_path: Path) -> None:
    save(kind, tmp_path / "model.gguf", formats)
    directory = tmp_path / "model.gguf"
    tokens = [*range(VOCAB)] * 3
    expected = network(directory).whole(tokens)
    served = network(directory, "int4")
    found = served.whole(tokens)
    assert torch.nn.functional.cosine_similarity(found, expected).median() > (0.9 if formats == ("BF16",) else 0.995)
    assert not torch.equal(found, expected)
    if kind != "mixtral":  # whose gates and experts are chosen in floats
        assert torch.equal(served.whole(tokens, chunk=7), found)
