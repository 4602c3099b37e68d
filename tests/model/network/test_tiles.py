"""Which weights of a model get their tiles, and that tiles change no bit of what it computes."""

import json
import re
from pathlib import Path

import pytest
import torch

from model.attention import choose
from model.attention.paged import PagedAttention
from model.kernels.cpu import native
from model.kernels.cpu.packed import PackedWeights
from model.kernels.cpu.tuning import tuner
from model.linear.base import Projection
from model.loading import load_from
from model.network.fused import fuse
from model.network.transformer import Transformer
from model.network.tuning import paged_trials
from model.network.tuning.tiles import choose_tiles
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.warming import step
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
    choose_tiles(model, options(tmp_path), attention, torch.float32)
    (file,) = tmp_path.iterdir()
    content = file.read_text()
    for i, tile in enumerate(native.variant(native.available()[0]).tiles(0), 1):
        file.write_text(re.sub(r'"(default|\d+x\d+)"', f'"{tile}"', content))
        choose_tiles(model, options(tmp_path), attention, torch.float32)
        assert all(list(part.record.tiles) == [i] * 4 for part in packed(model))
        driver = Driver(model, attention)
        driver.fused = fuse(model, attention, driver.pools)
        assert torch.equal(driver.whole(TOKENS, 33), expected), tile


@pytest.fixture
def small_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over few bytes is worth timing, too."""
    monkeypatch.setattr(paged_trials, "LEAST_BYTES", 1)
    monkeypatch.setattr(paged_trials, "MOST_BYTES", 2**20)


@pytest.mark.usefixtures("small_attention")
@pytest.mark.parametrize("kept", [None, {"ahead": "6", "rows": "4"}, {"ahead": "no"}], ids=repr)
def test_attention_reads_as_the_file_says(kept: dict[str, str] | None, tmp_path: Path) -> None:
    """A file without the choice, as older versions wrote it, or with one that is not known, is completed."""
    source, name = checkpoint(tiny()), "attention bfloat16 4x2x8"
    first = load_from(source, options(tmp_path, quantize="int8"), lambda stage, done: None)
    (file,) = tmp_path.iterdir()
    content = json.loads(file.read_text())
    content["tiles"].pop(name)
    others = dict(content["tiles"])
    content["tiles"] |= {} if kept is None else {name: kept}
    file.write_text(json.dumps(content))
    second = load_from(source, options(tmp_path, quantize="int8"), lambda stage, done: None)
    after = json.loads(file.read_text())["tiles"]
    chosen = after.pop(name)
    assert (after, chosen.keys()) == (others, {"ahead", "rows"})
    network = second._whole._network  # type: ignore[union-attr]
    choice = {field: paged_trials.CANDIDATES[field][chosen[field]] for field in chosen}
    assert {"ahead": network.ahead, "rows": network.rows_a_task} == choice
    if kept == {"ahead": "6", "rows": "4"}:
        assert chosen == kept
    batch = step(first.info, [70], SamplingParams(max_tokens=1, temperature=0.0, logprobs=3, prompt_logprobs=3))
    assert second.launch(batch)().slices == first.launch(batch)().slices


def test_off_times_and_keeps_nothing(tmp_path: Path) -> None:
    choose_tiles(quantized("int8"), options(tmp_path, tune="off"), PagedAttention(), torch.float32)
    assert not list(tmp_path.iterdir())


def test_pytorchs_products_have_no_tiles(tmp_path: Path) -> None:
    choose_tiles(quantized("none"), options(tmp_path), PagedAttention(), torch.float32)
    assert not list(tmp_path.iterdir())


def test_a_loaded_model_has_its_tiles(tmp_path: Path) -> None:
    load_from(checkpoint(tiny()), options(tmp_path, quantize="int8"), lambda stage, done: None)
    assert len(list(tmp_path.iterdir())) == 1


def test_without_a_home_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    choose_tiles(quantized("int8"), RunnerOptions("", device="cpu", threads=1), PagedAttention(), torch.float32)
