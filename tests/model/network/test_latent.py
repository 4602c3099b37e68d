"""Networks with latent attention against transformers, in both formats, and the promises of the compiled kernels."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention.paged import PagedAttention
from model.checkpoint.config import read_config
from model.decide import Abilities, decide
from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.linear.schemes import SCHEMES
from model.memory.sizes import weight_bytes
from model.network.tensors import places
from model.options import RunnerOptions
from model.sharding.layout import Layout
from model.sharding.shard import shard_of
from tests.model.attention.attending import SWIFT, make
from tests.model.checkpoint.native_files import tensors_of
from tests.model.driving import Driver, loaded, storages
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
    "odd heads": lambda: mistral4(qk_nope_head_dim=13, v_head_dim=23, kv_lora_rank=45, first_k_dense_replace=3),
    "a channel that does not rotate": lambda: mistral4(qk_nope_head_dim=1),
    "dense layers": lambda: mistral4(first_k_dense_replace=SHAPE["num_hidden_layers"]),
    "a latent of 256": lambda: mistral4(kv_lora_rank=256, qk_rope_head_dim=64, qk_nope_head_dim=64, v_head_dim=128),
}


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


def test_the_scale_of_hugging_face_files(tmp_path: Path) -> None:
    """Equal mscale and mscale_all_dim: base, unless --softmax-scale says yarn, which is what transformers computes."""
    model = mistral4(rope_parameters={**ROPE, **LLAMA_4, "mscale_all_dim": 1.0})
    model.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    assert config.latent is not None
    assert config.latent.softmax_scale == 20**-0.5
    wanted = decide(config, "floats", None, RunnerOptions("", softmax_scale="yarn"), Abilities("cpu")).config
    assert wanted.latent is not None
    assert wanted.latent.softmax_scale == pytest.approx(model.model.layers[0].self_attn.scaling)
    dense = read_config(save_native(deepseek_v3(q_lora_rank=None), tmp_path / "other"))
    assert dense.latent is not None
    assert dense.latent.softmax_scale == 20**-0.5


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    """A native model whose widths suit all schemes, and its log probabilities."""
    model = mistral4(v_head_dim=32, kv_lora_rank=64)
    return save_native(model, tmp_path_factory.mktemp("native")), logprobs(model)


@pytest.fixture
def chosen(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The variant that also packs the weights: AMX has another layout of bfloat16 than the others."""
    monkeypatch.setenv(native.KERNELS, kernels.variant)
    return kernels


COMPILED = ("int8", "int4", "bfloat16")
ERROR = {"int8": 0.12, "bfloat16": 0.04}
"""The mean difference of log probabilities at most. That of a Mistral of this size and weights is 0.09 and 0.025."""


@pytest.mark.each
@pytest.mark.parametrize("sizes", [{}, {"qk_nope_head_dim": 13, "v_head_dim": 23}], ids=["", "odd heads"])
@pytest.mark.parametrize("scheme", ERROR)
def test_the_compiled_step_computes_the_model(
    scheme: str, sizes: dict[str, int], tmp_path: Path, chosen: Kernels
) -> None:
    """Without experts, of which a rounded token may take others. int4: test_gguf_latent.py."""
    model = deepseek_v3(**{"v_head_dim": 32, "kv_lora_rank": 64, **sizes})
    driver = Driver(loaded(save_native(model, tmp_path), scheme), PagedAttention(chosen), shuffle=0)
    driver.compile()
    found = driver.whole(TOKENS).log_softmax(-1)
    assert (found - logprobs(model)).abs().mean() < ERROR[scheme]


@pytest.mark.each
@pytest.mark.parametrize("scheme", COMPILED)
def test_the_compiled_step_has_the_same_bits(scheme: str, saved: tuple[Path, Tensor], chosen: Kernels) -> None:
    """In chunks of any size, beside other sequences, and in pages in another order."""
    model = loaded(saved[0], scheme)
    alone = Driver(model, PagedAttention(chosen))
    alone.compile()
    whole = alone.whole(TOKENS)
    for chunk in (1, 7, 33):
        other = Driver(model, PagedAttention(chosen), shuffle=1)
        other.compile()
        assert torch.equal(other.whole(TOKENS, chunk), whole), chunk
    packed = Driver(model, PagedAttention(chosen), shuffle=2)
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
        {name: place.shape for name, place in places(shard_of(config, Layout(tensor=2).place(rank)))}
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
