"""The tuner with the real kernels: every choice gives exact results and the same bits, and reaches the weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import FORMATS, PackedWeights, bfloat16, superblocks
from model.kernels.cpu.records import ROW_CLASSES
from model.kernels.cpu.tuning import trials, tuner
from model.kernels.cpu.tuning.contest import Contest
from model.kernels.cpu.tuning.store import Store
from model.kernels.cpu.tuning.tuner import EFFORTS, Tuner
from tests.model import records
from tests.model.records import KINDS

N_ROWS = (1, 2, 9, 16, 17, 35, 131)
N_OUT, N_IN = 7 * 16 + 5, 256


def signed(n_out: int) -> Tensor:
    """Integers [n_out, N_IN] that all layouts hold: 4 bits with their sign."""
    return torch.randint(-8, 8, (n_out, N_IN), generator=torch.Generator().manual_seed(n_out))


def int8(kernels: Kernels, matrix: Tensor) -> PackedWeights:
    return records.int8(matrix.to(torch.int8), torch.ones(len(matrix)))


def floats(kernels: Kernels, matrix: Tensor) -> PackedWeights:
    packed = bfloat16(*matrix.shape)
    kernels.quantize(packed, 0, matrix.float())
    return packed


def in_blocks(kind: str) -> Callable[[Kernels, Tensor], PackedWeights]:
    """Scales of 1; a minimum of -8 and weights 0..15 where there are minima."""
    n_bytes, has_minima = KINDS[kind]

    def pack(kernels: Kernels, matrix: Tensor) -> PackedWeights:
        groups = matrix.unflatten(1, (-1, 32)) + (8 if has_minima or n_bytes == 16 else 0)
        if n_bytes == 16:
            groups = groups[..., :16] + groups[..., 16:] * 16
        ones = torch.ones(groups.shape[:2]).half()
        dtype = torch.uint8 if n_bytes == 16 else torch.int8
        return records.packed(kernels, groups.to(dtype), ones, ones * -8 if has_minima else None)

    return pack


def in_superblocks(kernels: Kernels, matrix: Tensor) -> PackedWeights:
    """Blocks of Q4_K: factors 1 and 8, all scales and minima 1, then weights 0..15."""
    packed = superblocks(*matrix.shape)
    rows = torch.ones(len(matrix), N_IN // 256, 144, dtype=torch.uint8)
    rows[..., :4] = torch.tensor([1, 8], dtype=torch.float16).view(torch.uint8)
    rows[..., 12:16] = 17
    q = (matrix + 8).view(len(matrix), -1, 4, 2, 32).to(torch.uint8)
    rows[..., 16:] = (q[..., 0, :] | q[..., 1, :] << 4).flatten(2)
    kernels.pack_superblocks(packed, 0, rows.flatten(1))
    return packed


PACK = {"int8": int8, "bfloat16": floats, "q4_k": in_superblocks} | {kind: in_blocks(kind) for kind in KINDS}


@pytest.mark.parametrize("name", FORMATS)
def test_every_tile_of_every_class_is_exact(kernels: Kernels, name: str) -> None:
    """Integers whose products and sums are exact in every format, against int64. Each group of x has a 127 or -127."""
    source = torch.Generator().manual_seed(0)
    matrix = signed(N_OUT)
    x = torch.randint(-127, 128, (max(N_ROWS), N_IN), generator=source)
    x[:, ::32] = 127
    expected = (x @ matrix.T).float()
    weights = PACK[name](kernels, matrix)
    assert weights.record.format == FORMATS.index(name)
    names = kernels.tiles(weights.record.format)
    assert len(set(names)) == len(names) > 0
    for choice in range(len(names) + 1):
        weights.record.tiles[:] = [choice] * len(ROW_CLASSES)
        for n in N_ROWS:
            assert torch.equal(kernels.linear(weights, x[:n].float()), expected[:n]), (choice, n)


@pytest.mark.parametrize("name", FORMATS)
def test_every_tile_gives_the_bits_of_the_default(kernels: Kernels, name: str) -> None:
    weights = PACK[name](kernels, signed(N_OUT))
    x = torch.randn(max(N_ROWS), N_IN)
    expected = kernels.linear(weights, x)
    for choice in range(1, len(kernels.tiles(weights.record.format)) + 1):
        weights.record.tiles[:] = [choice] * len(ROW_CLASSES)
        for n in N_ROWS:
            assert torch.equal(kernels.linear(weights, x[:n]), expected[:n]), (choice, n)


def made(kernels: Kernels, folder: Path, **place: str) -> Tuner:
    return Tuner(kernels, 1, Store(folder, {"processor": "some", **place}, "library"))


def chosen(weights: PackedWeights) -> list[int]:
    return list(weights.record.tiles)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights are worth timing, too."""
    monkeypatch.setattr(tuner, "LEAST_BYTES", 1)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The last tile of each contest is the fastest. The shapes that are timed."""
    shapes = []

    def timing(kernels: Kernels, weights: list[PackedWeights], row_class: int, threads: int) -> trials.Timing:
        shapes.extend(tuner.by_shape(weights))
        tiles = kernels.tiles(weights[0].record.format)
        contest = Contest(2, lambda i: None)
        contest.times = {0: [2.0] * 3, 1: [1.0] * 3}
        return trials.Timing(contest, [trials.DEFAULT, tiles[-1]])

    monkeypatch.setattr(tuner, "timing", timing)
    monkeypatch.setattr(tuner, "hold", lambda *_: None)
    return shapes


@pytest.mark.usefixtures("small")
def test_a_second_start_times_nothing(kernels: Kernels, timed: list[str], tmp_path: Path) -> None:
    first, second = int8(kernels, signed(64)), int8(kernels, signed(64))
    made(kernels, tmp_path).tune([first], EFFORTS["start"])
    assert timed == [f"int8 {N_IN}x64"] * len(ROW_CLASSES)
    made(kernels, tmp_path).tune([second], EFFORTS["start"])
    last = len(kernels.tiles(FORMATS.index("int8")))
    assert chosen(first) == chosen(second) == [last] * len(ROW_CLASSES)
    assert len(timed) == len(ROW_CLASSES)


@pytest.mark.usefixtures("small")
def test_what_is_new_is_timed_and_the_rest_kept(kernels: Kernels, timed: list[str], tmp_path: Path) -> None:
    made(kernels, tmp_path).tune([int8(kernels, signed(64))], EFFORTS["start"])
    timed.clear()
    weights = [int8(kernels, signed(64)), int8(kernels, signed(80)), floats(kernels, signed(64))]
    made(kernels, tmp_path).tune(weights, EFFORTS["start"])
    assert set(timed) == {f"int8 {N_IN}x80", f"bfloat16 {N_IN}x64"}
    timed.clear()
    made(kernels, tmp_path).tune(weights, EFFORTS["start"])
    assert not timed
    made(kernels, tmp_path).tune(weights, EFFORTS["thorough"])
    assert len(set(timed)) == 3
    timed.clear()
    made(kernels, tmp_path, variant="other").tune(weights, EFFORTS["start"])
    assert len(set(timed)) == 3


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("names", [{"1": "99x99"}, dict.fromkeys(map(str, ROW_CLASSES), "99x99"), {}], ids=repr)
def test_a_tile_that_is_not_compiled_is_timed_again(
    kernels: Kernels, timed: list[str], tmp_path: Path, names: dict[str, str]
) -> None:
    own = made(kernels, tmp_path)
    own.store.write({f"int8 {N_IN}x64": names})
    own.tune([int8(kernels, signed(64))], EFFORTS["start"])
    assert timed


@pytest.mark.usefixtures("small")
def test_what_was_timed_too_little_is_not_kept(kernels: Kernels, tmp_path: Path) -> None:
    own, weights = made(kernels, tmp_path), int8(kernels, signed(64))
    own.tune([weights], tuner.Effort(2, 1.0, uses_kept=True))
    assert chosen(weights) == [0] * len(ROW_CLASSES)
    assert own.store.read() == {}
    own.tune([weights], tuner.Effort(3, 1.0, uses_kept=True))
    assert own.store.read().keys() == {f"int8 {N_IN}x64"}


def test_small_weights_keep_the_default(kernels: Kernels, timed: list[str], tmp_path: Path) -> None:
    weights = int8(kernels, signed(64))
    made(kernels, tmp_path).tune([weights], EFFORTS["start"])
    assert not timed
    assert chosen(weights) == [0] * len(ROW_CLASSES)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", FORMATS)
def test_real_contests_choose_compiled_tiles(kernels: Kernels, name: str, tmp_path: Path) -> None:
    """Whoever wins: the weights get it and nothing else of them changes."""
    weights = [PACK[name](kernels, signed(n)) for n in (64, 64, 100)]
    before = [each.packed.clone() for each in weights]
    made(kernels, tmp_path).tune(weights, tuner.Effort(4, 0.05, uses_kept=True))
    assert chosen(weights[0]) == chosen(weights[1])
    assert all(0 <= i <= len(kernels.tiles(FORMATS.index(name))) for each in weights for i in chosen(each))
    assert all(torch.equal(each.packed, packed) for each, packed in zip(weights, before, strict=True))


def test_parts_cover_different_weights(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is some outputs: its product is a part of the whole one."""
    monkeypatch.setattr(trials, "MOST_BYTES", 8 * 1024)
    weights = int8(kernels, signed(N_OUT))
    x = torch.randn(3, N_IN)
    whole = kernels.linear(weights, x)
    parts = trials.parts_of([weights], 3, threads=1)
    assert len({part.record.packed for part in parts}) == len(parts) > 1
    assert {part.n_out for part in parts} == {32}
    for i, part in enumerate(parts):
        assert torch.equal(kernels.linear(part, x), whole[:, i * part.n_out :][:, : part.n_out])
