"""Which weights of a model get their tiles, and that tiles change no bit of what it computes."""

import re
from pathlib import Path

import pytest
import torch

from model.attention import choose
from model.kernels.cpu import native
from model.kernels.cpu.packed import PackedWeights
from model.kernels.cpu.tuning import tuner
from model.linear.base import Projection
from model.loading import load_from
from model.network.fused import fuse
from model.network.tiles import choose_tiles
from model.network.transformer import Transformer
from model.options import RunnerOptions
from tests.model.driving import CPU, EXPERTS, Driver, checkpoint, quantized, tiny

TOKENS = [(5 * i) % 64 for i in range(70)]


def packed(model: Transformer) -> list[PackedWeights]:
    parts = (part.packed for part in model.modules() if isinstance(part, Projection))
    return [part for part in parts if part is not None]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights are worth timing, too, and a moment is enough."""
    monkeypatch.setattr(tuner, "LEAST_BYTES", 1)
    monkeypatch.setitem(tuner.EFFORTS, "start", tuner.Effort(3, 1.0, uses_kept=True))


def options(folder: Path, **values: str) -> RunnerOptions:
    return RunnerOptions("", device="cpu", cache=str(folder), threads=1, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("experts", [{}, {**EXPERTS, "expert_hidden_dim": 160}], ids=["dense", "sparse"])
def test_every_tile_gives_the_model_the_same_bits(experts: dict[str, int], tmp_path: Path) -> None:
    """The file says which tile serves: each is written there in turn."""
    model = quantized("int8", dim=64, hidden_dim=96, **experts)
    attention = choose("paged", CPU)[1]
    expected = Driver(model, attention).whole(TOKENS, 33)
    choose_tiles(model, options(tmp_path))
    (file,) = tmp_path.iterdir()
    content = file.read_text()
    for i, tile in enumerate(native.variant(native.available()[0]).tiles(0), 1):
        file.write_text(re.sub(r'"(default|\d+x\d+)"', f'"{tile}"', content))
        choose_tiles(model, options(tmp_path))
        assert all(list(part.record.tiles) == [i] * 4 for part in packed(model))
        driver = Driver(model, attention)
        driver.fused = fuse(model, attention, driver.pools)
        assert torch.equal(driver.whole(TOKENS, 33), expected), tile


def test_off_times_and_keeps_nothing(tmp_path: Path) -> None:
    choose_tiles(quantized("int8"), options(tmp_path, tune="off"))
    assert not list(tmp_path.iterdir())


def test_pytorchs_products_have_no_tiles(tmp_path: Path) -> None:
    choose_tiles(quantized("none"), options(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_loaded_model_has_its_tiles(tmp_path: Path) -> None:
    load_from(checkpoint(tiny()), options(tmp_path, quantize="int8"), lambda stage, done: None)
    assert len(list(tmp_path.iterdir())) == 1


def test_without_a_home_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    choose_tiles(quantized("int8"), RunnerOptions("", device="cpu", threads=1))
