"""Configurations with latent attention: both scales of scores, refusals, plans, the census of tensors."""

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from model.attention.rope import frequencies, temperatures
from model.checkpoint.config import read_config
from model.checkpoint.families import FAMILIES
from model.checkpoint.open import open_checkpoint
from model.config.latent import LatentConfig
from model.config.model import QueryTemperature, Rope, RopeScaling
from model.decide import Abilities, decide
from model.errors import ModelError, OptionError
from model.memory.plan import make_plan
from model.network.tensors import places
from model.options import RunnerOptions
from model.setup import choose
from model.sharding.shard import shard_of
from tests.model.checkpoint.published import NATIVE_SMALL_4, ROWS, written
from tests.model.driving import tiny
from tests.model.network.latent_models import (
    LLAMA_4,
    ROPE,
    SHAPE,
    mistral4,
)

SMALL_4 = RopeScaling("yarn", 128.0, 8192, mscale=1.0, mscale_all_dim=1.0)


def options(**changes: Any) -> RunnerOptions:
    return RunnerOptions(**{"model": "", **changes})


def test_what_a_config_leaves_out_has_the_value_of_transformers() -> None:
    theirs, own = AutoConfig.for_model("mistral4"), FAMILIES["mistral4"].defaults
    assert {name: getattr(theirs, name) for name in own} == own


def test_both_scales_of_mistral_small_4(tmp_path: Path) -> None:
    """Trained with the first; transformers 5.23 and llama.cpp compute the second."""
    for name in ("Small 4", "Small 4, native"):
        config, scales = read_config(written(name, tmp_path)), []
        (tmp_path / ROWS[name].file).unlink()
        for scale in ("auto", "base", "yarn"):
            latent = decide(config, "floats", None, options(softmax_scale=scale), Abilities("cpu")).config.latent
            scales.append(0.0 if latent is None else latent.softmax_scale)
        assert scales == pytest.approx([0.0883883, 0.0883883, 0.194969], rel=1e-5), name


def test_another_scale_is_refused_without_latent_attention(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--softmax-scale yarn is for models with latent attention"):
        decide(tiny(), "floats", None, options(softmax_scale="yarn"), Abilities("cpu"))


def test_a_scale_that_no_file_asks_for_is_refused() -> None:
    latent = LatentConfig(None, 32, 16, 16, 16)
    with pytest.raises(OptionError, match="--softmax-scale yarn: the model's files ask for no other scale"):
        replace(tiny(), latent=latent).with_softmax_scale("yarn")


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_the_share_of_a_head_that_rotates_may_be_said_twice(key: str, tmp_path: Path) -> None:
    """transformers reads both keys alike."""
    mistral4().save_pretrained(tmp_path)
    wanted, path = read_config(tmp_path), tmp_path / "config.json"
    raw = json.loads(path.read_text())
    rope = raw.pop("rope_parameters") | {"partial_rotary_factor": 0.4}
    path.write_text(json.dumps({**raw, key: rope, "rope_theta": rope["rope_theta"]}))
    assert read_config(tmp_path) == wanted


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_float16_is_refused(device: str, tmp_path: Path) -> None:
    mistral4().save_pretrained(tmp_path)
    config = read_config(tmp_path)
    with pytest.raises(OptionError, match="overflows float16"):
        decide(config, "floats", None, options(dtype="float16"), Abilities(device))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_interleave": False}, "rope_interleave False; Noria supports True"),
        ({"n_group": 2}, "n_group 2; Noria supports 1"),
        ({"norm_topk_prob": False}, "norm_topk_prob False; Noria supports True"),
        ({"norm_topk_prob": None}, "norm_topk_prob None; Noria supports True"),
        ({"kv_lora_rank": None}, "whole number of at least 1 in kv_lora_rank"),
        ({"head_dim": 64}, "head_dim 64, but qk_nope_head_dim and qk_rope_head_dim are 12 and 8"),
    ],
)
def test_refused_configurations(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    mistral4().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


def test_frequencies_and_temperatures_of_small_4() -> None:
    """The values that two other implementations compute in float32."""
    found = frequencies(Rope(10_000.0, 64, scaling=SMALL_4), 64)
    expected = {0: "0x1p0", 1: "0x1.7ff222p-1", 12: "0x1.030dc6p-5", 13: "0x1.66df6cp-6", 18: "0x1.8f8aecp-9"}
    expected |= {24: "0x1.60e2dap-14", 25: "0x1.892918p-18", 31: "0x1.17a8e4p-20"}
    for lane, value in expected.items():
        assert float(found[lane]) == pytest.approx(float.fromhex(value), rel=1e-6), lane
    factors = temperatures(QueryTemperature(8192, 0.1), 1_048_576)
    for position, factor in ((8191, 1.0), (8192, 1.069314718), (100_000, 1.256494999), (1_048_575, 1.485203028)):
        assert float(factors[position]) == pytest.approx(factor, rel=1e-7)


def test_sizes_of_mistral_large_3(tmp_path: Path) -> None:
    """673.4 billion text weights, and 576 values a token and layer."""
    params = NATIVE_SMALL_4 | {"dim": 7168, "n_layers": 61, "n_heads": 128, "n_kv_heads": 128, "head_dim": 192}
    params |= {"hidden_dim": 16384, "vocab_size": 131_072, "norm_eps": 1e-6, "max_position_embeddings": 294_912}
    params |= {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128}
    params["moe"] = params["moe"] | {"expert_hidden_dim": 4096, "first_k_dense_replace": 3}
    del params["vision_encoder"]
    (tmp_path / "params.json").write_text(json.dumps(params))
    plan = make_plan(tmp_path, options(model=str(tmp_path), device="cuda"), 2**42)
    assert (plan.parameters, plan.token, plan.context) == (673_421_089_792, 61 * 576 * 2, 294_912)
    parts = make_plan(tmp_path, options(model=str(tmp_path), device="cuda", tensor_parallel_size=4), 2**42)
    assert parts.token == plan.token, "every rank has the latents of all heads"
    assert parts.weights < plan.weights / 3.9


def test_the_first_of_four_ranks_of_small_4(tmp_path: Path) -> None:
    """By hand, of a layer: the low ranks, latents, norms and the gate are whole, all else is a quarter. Each rank has
    all latents, 640 bytes a token and layer."""
    plan = make_plan(written("Small 4, native", tmp_path), options(device="cuda", tensor_parallel_size=4), 2**40)
    whole = 4096 * (1024 + 320) + 1024 + 256 + 2 * 4096 + 128 * 4096
    parts = 1024 * 4096 + 256 * 6144 + 4096 * 4096 + 129 * 3 * 4096 * 2048
    tables = 2 * 131_072 * 4096 // 4
    assert plan.weights == 2 * (36 * (whole + parts // 4) + tables + 4096) + plan.encoder
    assert plan.token == 36 * 640


def test_tensors_of_small_4_are_those_of_its_published_file(tmp_path: Path) -> None:
    """Its NVFP4 file has 56,313 tensors, 222 of them for images, and 70,801,959,560 bytes.

    Each of 13,932 matrices of experts has codes, a scale of 16 weights, and two numbers, one of them in two bytes for
    shared experts. All else is bfloat16.
    """
    found = places(shard_of(read_config(written("Small 4, native", tmp_path))))
    shapes = {name: place.shape for name, place in found}
    experts = {name: math.prod(shape) for name, shape in shapes.items() if "experts." in name}
    images = [name for name in shapes if name.startswith(("vision_", "patch_merger.", "pre_mm_"))]
    assert (len(experts), len(images), len(shapes) + 3 * len(experts)) == (13_932, 222, 56_313)
    n_bytes = sum(2 * math.prod(shape) for name, shape in shapes.items() if name not in experts)
    n_bytes += sum(n // 2 + n // 16 + 4 + (2 if "shared" in name else 4) for name, n in experts.items())
    assert n_bytes == 70_801_959_560


def test_the_log_names_the_scale(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mistral4(rope_parameters={**ROPE, **LLAMA_4, "mscale_all_dim": 1.0}).save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO, "model"):
        choose(open_checkpoint(tmp_path), options(model=str(tmp_path), device="cpu"))
    assert "scores are scaled by 0.223607, 1 / sqrt(head_dim)" in caplog.text
    assert "--softmax-scale yarn" in caplog.text


def test_the_plan_counts_latents(tmp_path: Path) -> None:
    config = mistral4(kv_lora_rank=256, qk_rope_head_dim=64, qk_nope_head_dim=64, v_head_dim=128)
    config.save_pretrained(tmp_path)
    plan = make_plan(tmp_path, options(model=str(tmp_path), device="cpu", dtype="bfloat16"), 2**30)
    assert plan.token == SHAPE["num_hidden_layers"] * 640
