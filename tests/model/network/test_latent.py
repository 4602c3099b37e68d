"""Networks with latent attention against transformers, in both formats, and the promises of the compiled kernels."""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention.paged import PagedAttention
from model.attention.rope import frequencies, temperatures
from model.checkpoint.families import read_config
from model.checkpoint.open import open_checkpoint
from model.config import QueryTemperature, Rope, RopeScaling
from model.decide import Abilities, decide
from model.errors import ModelError, OptionError
from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.linear.schemes import SCHEMES
from model.memory.plan import make_plan
from model.memory.sizes import weight_bytes
from model.network import weights
from model.options import RunnerOptions
from model.setup import choose
from model.sharding.layout import Layout
from model.sharding.shard import shard_of
from tests.model.attention.attending import SWIFT, make
from tests.model.checkpoint.native_files import tensors_of
from tests.model.checkpoint.published import NATIVE_SMALL_4, ROWS, written
from tests.model.driving import Driver, loaded, storages, tiny
from tests.model.network.latent_models import (
    LLAMA_4,
    ROPE,
    SHAPE,
    deepseek_v3,
    logprobs,
    mistral3,
    mistral4,
    native_params,
    save_native,
)
from tests.model.network.oracles import TOKENS, rename

MODELS: dict[str, Callable[[], Any]] = {
    "text": mistral4,
    "scaled where it rotates": lambda: mistral4(rope_parameters={**ROPE, **LLAMA_4, "attention_factor": None}),
    "text and images": mistral3,
    "queries of full rank": lambda: mistral4(q_lora_rank=None),
    "a latent of 256": lambda: mistral4(kv_lora_rank=256, qk_rope_head_dim=64, qk_nope_head_dim=64, v_head_dim=128),
}
SMALL_4 = RopeScaling("yarn", 128.0, 8192, mscale=1.0, mscale_all_dim=1.0)


def agree(directory: Path, backend: str, chunk: int | None, expected: Tensor) -> None:
    found = Driver(loaded(directory), make(backend), shuffle=0).whole(TOKENS, chunk).log_softmax(-1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_hugging_face_files(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    model.save_pretrained(tmp_path)
    for backend in SWIFT:
        for chunk in (1, 7, None):
            agree(tmp_path, backend, chunk, logprobs(model))


def test_native_files(tmp_path: Path) -> None:
    model = mistral4()
    for backend in SWIFT:
        for chunk in (1, 7, None):
            agree(save_native(model, tmp_path), backend, chunk, logprobs(model))


@pytest.mark.parametrize("rank", [32, None])
def test_deepseek_v3_has_the_same_attention(rank: int | None, tmp_path: Path) -> None:
    """Its layers are dense here; the native form says it as a model without `moe`."""
    model = deepseek_v3(q_lora_rank=rank)
    directory = save_native(model, tmp_path)
    for chunk in (1, 7, None):
        agree(directory, "sdpa", chunk, logprobs(model))


def test_the_scale_of_native_files_obeys_apply_scale(tmp_path: Path) -> None:
    """`true`, or nothing: scores are scaled as transformers scales them for mscale_all_dim 1. `false`: they are not."""
    for applied, all_dim in ((False, 0.0), (True, 1.0)):
        model = mistral4(rope_parameters={**ROPE, **LLAMA_4, "mscale_all_dim": all_dim})
        directory = save_native(model, tmp_path / str(applied))
        assert json.loads((directory / "params.json").read_text())["yarn"]["apply_scale"] is applied
        agree(directory, "sdpa", None, logprobs(model))
    yarn = native_params(model.config)["yarn"]
    del yarn["apply_scale"]
    agree(save_native(model, tmp_path / "silent", yarn=yarn), "sdpa", None, logprobs(model))


def test_both_scales_of_mistral_small_4(tmp_path: Path) -> None:
    """Trained with the first; transformers 5.23 and llama.cpp compute the second."""
    for name in ("Small 4", "Small 4, native"):
        config, scales = read_config(written(name, tmp_path)), []
        (tmp_path / ROWS[name].file).unlink()
        for scale in ("auto", "base", "yarn"):
            latent = decide(config, "floats", None, options(softmax_scale=scale), Abilities("cpu")).config.latent
            scales.append(0.0 if latent is None else latent.softmax_scale)
        assert scales == pytest.approx([0.0883883, 0.0883883, 0.194969], rel=1e-5), name


def test_the_scale_of_hugging_face_files(tmp_path: Path) -> None:
    """Equal mscale and mscale_all_dim: base, unless --softmax-scale says yarn, which is what transformers computes."""
    model = mistral4(rope_parameters={**ROPE, **LLAMA_4, "mscale_all_dim": 1.0})
    model.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    assert config.latent is not None
    assert config.latent.softmax_scale == 20**-0.5
    wanted = decide(config, "floats", None, options(softmax_scale="yarn"), Abilities("cpu")).config
    assert wanted.latent is not None
    assert wanted.latent.softmax_scale == pytest.approx(model.model.layers[0].self_attn.scaling)
    dense = read_config(save_native(deepseek_v3(q_lora_rank=None), tmp_path / "other"))
    assert dense.latent is not None
    assert dense.latent.softmax_scale == 20**-0.5


def options(**changes: Any) -> RunnerOptions:
    return RunnerOptions(**{"model": "", **changes})


def test_another_scale_is_refused_without_latent_attention(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--softmax-scale yarn is for models with latent attention"):
        decide(tiny(), "floats", None, options(softmax_scale="yarn"), Abilities("cpu"))


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


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    """A native model whose widths suit all schemes, and its log probabilities."""
    model = mistral4(v_head_dim=32, kv_lora_rank=64)
    return save_native(model, tmp_path_factory.mktemp("native")), logprobs(model)


COMPILED = ("int8", "int4", "bfloat16")
ERROR = {"int8": 0.12, "bfloat16": 0.04}
"""The mean difference of log probabilities at most. That of a Mistral of this size and weights is 0.09 and 0.025."""


@pytest.mark.parametrize("scheme", ERROR)
def test_the_compiled_step_computes_the_model(scheme: str, tmp_path: Path, kernels: Kernels) -> None:
    """Without experts, of which a rounded token may take others. int4: test_gguf_latent.py."""
    model = deepseek_v3(v_head_dim=32, kv_lora_rank=64)
    driver = Driver(loaded(save_native(model, tmp_path), scheme), PagedAttention(kernels), shuffle=0)
    driver.compile()
    found = driver.whole(TOKENS).log_softmax(-1)
    assert (found - logprobs(model)).abs().mean() < ERROR[scheme]


@pytest.mark.parametrize("scheme", COMPILED)
def test_the_compiled_step_has_the_same_bits(scheme: str, saved: tuple[Path, Tensor], kernels: Kernels) -> None:
    """In chunks of any size, beside other sequences, and in pages in another order."""
    model = loaded(saved[0], scheme)
    alone = Driver(model, PagedAttention(kernels))
    alone.compile()
    whole = alone.whole(TOKENS)
    for chunk in (1, 7, 33):
        other = Driver(model, PagedAttention(kernels), shuffle=1)
        other.compile()
        assert torch.equal(other.whole(TOKENS, chunk), whole), chunk
    packed = Driver(model, PagedAttention(kernels), shuffle=2)
    packed.compile()
    first, second = packed.start(TOKENS), packed.start(TOKENS[::-1])
    rows = [packed.step([(second, 11), (first, 29)])[1], packed.step([(first, len(TOKENS) - 29), (second, 5)])[0]]
    assert torch.equal(torch.cat(rows), whole)


@pytest.mark.parametrize("scheme", COMPILED)
def test_layer_by_layer_is_as_in_one_call(scheme: str, saved: tuple[Path, Tensor]) -> None:
    """But for the rounding of the latent's norm, which PyTorch computes there."""
    model, results = loaded(saved[0], scheme), []
    for compiled in (False, True):
        driver = Driver(model, PagedAttention(native.needed()))
        if compiled:
            driver.compile()
        results.append(driver.whole(TOKENS, 9).log_softmax(-1))
    assert (results[0] - results[1]).abs().mean() < 0.05


def test_ranks_hold_parts_of_heads(tmp_path: Path) -> None:
    """Two ranks: the low ranks and the latent are whole on each, heads are shared."""
    mistral4().save_pretrained(tmp_path)
    config = read_config(tmp_path)
    shapes = [
        {name: place.shape for name, place in weights.places(shard_of(config, Layout(tensor=2).place(rank)))}
        for rank in range(2)
    ]
    assert shapes[0] == shapes[1]
    own = {name.removeprefix("layers.0.attention."): shape for name, shape in shapes[0].items()}
    assert own["wq_a.weight"] == (32, 64)
    assert own["wq_b.weight"] == (2 * 20, 32)
    assert own["wkv_a_with_mqa.weight"] == (48 + 8, 64)
    assert own["wkv_b.weight"] == (2 * (12 + 24), 48)
    assert own["wo.weight"] == (64, 2 * 24)


def test_older_names_of_a_model_of_text_and_images(tmp_path: Path) -> None:
    """transformers 5 writes `language_model.model.`, the published file has `model.language_model.`."""
    model = mistral3()
    model.save_pretrained(tmp_path)
    names = set(tensors_of(tmp_path))
    old = any(name.startswith("language_model.") for name in names)

    def other(name: str) -> str:
        if old and name.startswith("language_model.model."):
            return "model.language_model." + name.removeprefix("language_model.model.")
        if not old and name.startswith("model.language_model."):
            return "language_model.model." + name.removeprefix("model.language_model.")
        return name

    rename(tmp_path, other)
    agree(tmp_path, "sdpa", None, logprobs(model))


@pytest.mark.parametrize("scheme", ["int8", "bfloat16"])
def test_weights_take_what_the_plan_says(scheme: str, tmp_path: Path) -> None:
    """But for the gates and norms, which are float32."""
    sizes = {"q_lora_rank": 256, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64}
    model = mistral4(hidden_size=256, intermediate_size=512, moe_intermediate_size=128, **sizes)
    directory = save_native(model, tmp_path)
    planned = weight_bytes(shard_of(read_config(directory)), SCHEMES[scheme], "float32")
    assert storages(loaded(directory, scheme)) == pytest.approx(planned, rel=0.02)


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
    found = weights.places(shard_of(read_config(written("Small 4, native", tmp_path))))
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
