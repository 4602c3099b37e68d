"""Configs as published and as transformers writes them. Oracle: transformers' own reading of the same file."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from model.checkpoint.config import doubts, read_config
from model.checkpoint.families import FAMILIES
from model.checkpoint.generation_config import GenerationDefaults, read_generation
from model.checkpoint.names import canonical_name
from model.config.model import ModelConfig, QueryTemperature, RopeScaling
from model.errors import ModelError

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
PUBLISHED = {"model_type": "llama", "hidden_act": "silu", "torch_dtype": "bfloat16", **SIZES}
NATIVE = {
    "dim": 32,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 8,
    "hidden_dim": 48,
    "norm_eps": 1e-5,
    "vocab_size": 64,
    "dtype": "bfloat16",
}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MIXED = {
    "model_type": "ministral",
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "sliding_window": 5,
}
TWO_ROPES = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}


def _hf(directory: Path, **changes: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps({**PUBLISHED, **changes}))
    return read_config(directory)


def _native(directory: Path, **changes: Any) -> ModelConfig:
    (directory / "params.json").write_text(json.dumps({**NATIVE, **changes}))
    return read_config(directory)


@pytest.mark.parametrize("family", FAMILIES)
def test_silence_means_what_it_means_to_transformers(family: str, tmp_path: Path) -> None:
    """config.json has no theta, window, head size, scaling or kv heads."""
    raw = {**PUBLISHED, "model_type": family, "num_local_experts": 4, "num_experts_per_tok": 2}
    raw["num_attention_heads"] = 8
    del raw["num_key_value_heads"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs, mine = AutoConfig.from_pretrained(tmp_path), read_config(tmp_path)
    assert mine.n_kv_heads == (8 if mine.latent else theirs.num_key_value_heads), "latents have one for each head"
    assert mine.rope_theta == theirs.rope_parameters["rope_theta"]
    assert set(mine.windows) == {getattr(theirs, "sliding_window", None)}
    assert mine.head_dim == (getattr(theirs, "head_dim", None) or 4)
    kind = theirs.rope_parameters["rope_type"]
    assert (mine.rope_scaling.kind if mine.rope_scaling else "default") == kind
    if kind == "yarn":
        factor, original = {"ministral3": (16.0, 16384), "mistral4": (128.0, 8192)}[family]
        assert mine.rope_scaling == RopeScaling("yarn", factor, original, mscale=1.0, mscale_all_dim=1.0)
        assert mine.query_temperature == QueryTemperature(original, 0.1)
        expected = {**(FAMILIES[family].rope_parameters or {}), "beta_fast": 32, "beta_slow": 1}
        assert expected.items() <= theirs.rope_parameters.items()


def test_dynamic_scaling_is_fixed_from_the_longest_length_served(tmp_path: Path) -> None:
    _hf(tmp_path, rope_theta=1e4, rope_scaling={"type": "dynamic", "factor": 2.0})
    theirs = AutoConfig.from_pretrained(tmp_path)
    for length, max_position in ((100, 128), (128, 128), (200, 200), (500, 2 * 128)):
        config = read_config(tmp_path, max_model_len=length)
        assert config.max_position == max_position
        frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs, seq_len=length)
        assert config.rope_theta ** (-2 / 8) == pytest.approx(frequencies[1].item(), rel=1e-6)
        assert config.rope_scaling is None
    assert (read_config(tmp_path).rope_theta, read_config(tmp_path).max_position) == (1e4, 128)
    _hf(tmp_path, rope_scaling={"type": "linear", "factor": 2.0})
    assert read_config(tmp_path, max_model_len=200).max_position == 128, "other scalings do not stretch the context"


def test_rope_fraction(tmp_path: Path) -> None:
    assert _hf(tmp_path, rope_fraction=0.25).rope_fraction == 0.25
    assert _hf(tmp_path, rope_fraction=0.0).rope_fraction == 0.0
    assert _hf(tmp_path, rope_fraction=None, partial_rotary_factor=1.0).rope_fraction == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "qwen2"},
            "'qwen2'; Noria supports mistral, ministral, ministral3, mixtral, mistral4, llama, .*3, llava, voxtral$",
        ),
        (
            {"model_type": "mistral_large4"},
            "'mistral_large4', which needs a sparse index .*, learned RoPE scales and caches .*: Noria has none",
        ),
        ({"model_type": "mistral_large4_text"}, "'mistral_large4_text', which needs a sparse index .*: Noria has none"),
        ({"model_type": "deepseek_v3"}, "'deepseek_v3', which needs a sigmoid router with a correction bias"),
        ({"model_type": "voxtral"}, "a voxtral model must have an object in text_config, it has None"),
        (
            {"model_type": "voxtral_realtime"},
            "'voxtral_realtime', which needs an audio encoder with a cache of its own",
        ),
        ({"model_type": "mamba2"}, r"'mamba2', which needs a state space layer \(Codestral Mamba\)"),
        ({"model_type": "pixtral"}, "'pixtral', which needs an image encoder without a text model"),
        ({"model_type": "mistral3"}, "config.json of a mistral3 model must have an object in text_config, it has None"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'; Noria supports 'silu'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope'; Noria supports default, linear"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor of at least 1, it has 0.5"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "chunked_attention": {}}},
            "RoPE parameters for 'chunked_attention' beside those of a layer type; Noria supports sliding_attention",
        ),
        (
            {**MIXED, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "no RoPE parameters for the layer type sliding_attention; add them",
        ),
        ({**MIXED, **TWO_ROPES, "sliding_window": None}, "RoPE parameters per layer type and no sliding_window"),
        (
            {**MIXED, "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}, "sliding_attention": {}}},
            "RoPE rotates 8 values of a head in one type of layer and 4 in another; Noria supports one number",
        ),
        ({**MIXED, "layer_types": ["chunked_attention"] * 3}, "'chunked_attention' in layer_types"),
        ({"mlp_bias": True}, "mlp_bias True; Noria supports False"),
        ({"partial_rotary_factor": 1.5}, r"partial_rotary_factor 1\.5; Noria supports numbers above 0 and up to 1"),
        (
            {"partial_rotary_factor": 0.4},
            "RoPE must rotate an even number of a head's 8 values, the checkpoint rotates 3",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": "no"}}, "truncate .* true or false, it is 'no'"),
        (
            {"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}},
            r"low_freq_factor of the RoPE scaling must be below high_freq_factor, they are 4\.0 and 4\.0",
        ),
        ({"hidden_size": None}, "a whole number of at least 1 in hidden_size, it has None"),
        ({"rope_scaling": "linear"}, "config.json must have an object or null in rope_scaling, it has 'linear'"),
        ({"model_type": ["llama"]}, r"config.json must have a name in model_type, it has \['llama'\]"),
        (
            {"head_dim": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type 'dynamic', which needs a head_dim above 2, it has 2",
        ),
        ({"model_type": "mistral", "sliding_window": []}, "sliding_window in config.json is an empty list"),
        (
            {**MIXED, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1},
            r"sliding_window 5 and \['full_attention', .*\] in layer_types; a mixtral model has its window",
        ),
        (TWO_ROPES, "RoPE parameters per layer type; a llama model has none: remove all but one"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype is 'float8_e4m3fn'; Noria supports bfloat16"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        _hf(tmp_path, **changes)
    assert "\n" not in str(caught.value)


def test_native_defaults(tmp_path: Path) -> None:
    """No rope_theta means 10,000 with a window and 1,000,000 without."""
    config = _native(tmp_path)
    assert (config.family, config.rope_theta, config.windows) == ("mistral", 1e6, (None,) * 3)
    assert config.max_position == 32768
    config = _native(tmp_path, sliding_window=5)
    assert (config.rope_theta, config.windows) == (1e4, (5, 5, 5))
    assert _native(tmp_path, sliding_window=5, rope_theta=7.0).rope_theta == 7.0
    assert _native(tmp_path, max_seq_len=99).max_position == 99
    assert _native(tmp_path, head_dim=16).head_dim == 16
    assert _native(tmp_path, sliding_window=[None, None]).rope_theta == 1e6
    assert _native(tmp_path, sliding_window=[None, 5]).rope_theta == 1e4


def test_native_underscored_window_is_the_window(tmp_path: Path) -> None:
    """Ministral 8B: one layer of four sees all tokens."""
    assert _native(tmp_path, sliding_window=[9, None]).windows == (9, None, 9)
    assert _native(tmp_path, _sliding_window=7, sliding_window=7).windows == (7, 7, 7)
    with pytest.raises(ModelError, match="sliding_window 5 and _sliding_window 7; they mean the same, remove one"):
        _native(tmp_path, _sliding_window=7, sliding_window=5)


UNUSED = ("colour", "dropout")
MOE = {"num_experts": 8, "num_experts_per_tok": 2}
REFUSED_EXPERTS = [
    ({"num_expert_groups": 4}, "params.json has moe.num_expert_groups 4; Noria supports 1 group of experts"),
    (
        {"router_bias": True},
        r"moe in params.json has 'router_bias' \(True\), which Noria does not know; it knows expert_hidden_dim",
    ),
    ({"num_experts": None}, "params.json has moe without num_experts; Noria needs a number of at least 1"),
    ({"num_experts_per_tok": 9}, "n_experts_per_token must be 1 to 8, got 9"),
    ({"num_shared_experts": 1.5}, r"n_shared_experts must be at least 0 and at most 2147483647, it is 1\.5"),
    ({"routed_scale": 0}, "routed_scale must be a number above 0, the checkpoint has 0"),
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"use_scaled_rope": True},
            r"params.json has 'use_scaled_rope' \(True\), which Noria does not know; it knows ",
        ),
        ({"yarn": {"some": 1}}, r"yarn in params.json has 'some' \(1\), which Noria does not know; it knows alpha"),
        ({"yarn": {"factor": 2}}, "yarn in params.json must have a finite number in original_max_position_embeddings"),
        (
            {"yarn": {"factor": 2, "original_max_position_embeddings": 0}},
            "yarn in params.json must have a number above 0 in original_max_position_embeddings, it has 0",
        ),
        ({"moe": {"num_experts": "a"}}, "params.json must have a finite number in moe.num_experts, it has 'a'"),
        ({"rope_theta": "abc"}, "params.json must have a finite number in rope_theta, it has 'abc'"),
        ({"dtype": ""}, "the checkpoint's dtype is ''; Noria supports"),
        ({"yarn": {"apply_scale": 1}}, "apply_scale 1 in yarn; it must be true or false"),
        ({"yarn": 4}, "yarn in params.json must be an object, it is 4"),
        ({"llama_4_scaling": {"beta": 0.1}}, "original_max_position_embeddings of the query temperature"),
        ({"model_type": "mamba"}, r"'mamba', which needs a state space layer \(Codestral Mamba\): Noria has none"),
        ({"model_type": "rwkv"}, "params.json has model_type 'rwkv'; Noria supports transformer"),
        ({"kv_lora_rank": 512}, "params.json must have a whole number of at least 1 in qk_rope_head_dim, it has None"),
        ({"multimodal": {"whisper_model_args": {"mood": 1}}}, r"whisper_model_args in params.json has 'mood' \(1\)"),
        ({"multimodal": "x"}, "params.json must have an object or null in multimodal, it has 'x'"),
        ({"head_dim": 0}, "params.json must have a whole number of at least 1 in head_dim, it has 0"),
        ({"rope_theta": 0}, "params.json must have a number above 0 in rope_theta, it has 0"),
        ({"sliding_window": []}, "sliding_window in params.json is an empty list; it must be a window, null"),
        ({"lora": {"rank": 4}}, r"params.json has lora \{'rank': 4\}, which needs LoRA adapters: Noria has none"),
        ({"activation": "gelu"}, "params.json has activation 'gelu'; Noria supports 'silu'"),
        *(({"moe": MOE | changes}, message) for changes, message in REFUSED_EXPERTS),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_native_keys_are_strict(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        _native(tmp_path, **changes)
    assert "\n" not in str(caught.value)


def test_a_model_whose_layers_are_all_dense_has_no_experts(tmp_path: Path) -> None:
    assert _native(tmp_path, moe={**MOE, "first_k_dense_replace": 3}).n_experts == 0
    assert _native(tmp_path, moe={**MOE, "first_k_dense_replace": 2}).n_experts == 8


def test_an_unknown_key_is_refused_if_it_may_change_the_computation(tmp_path: Path) -> None:
    assert _native(tmp_path, colour=1, dropout=0.1) == _native(tmp_path)
    _native(tmp_path, colour=1, dropout=0.1)
    assert doubts(tmp_path) == tuple(f"params.json has the key {key!r}, which Noria does not use" for key in UNUSED)
    computing = ("attention_sinks", "rope_twist", "expert_bias", "logit_scale", "final_softcapping", "n_experts")
    for key in (*computing, "no_rope_layers", "hidden_act", "mlp_bias", "use_qk_norm", "layer_types", "rotary_dim"):
        with pytest.raises(ModelError, match=f"params.json has '{key}' .*, which Noria does not know"):
            _native(tmp_path, **{key: 1})


def test_a_family_has_its_own_keys_of_experts(tmp_path: Path) -> None:
    """Mixtral's code in transformers reads no other keys."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    plain = _hf(tmp_path, model_type="mixtral", **experts)
    others = {"n_shared_experts": 1, "routed_scaling_factor": 3.0, "n_routed_experts": 8, "first_k_dense_replace": 7}
    assert _hf(tmp_path, model_type="mixtral", **experts, **others) == plain
    with pytest.raises(ModelError, match=r"config\.json must have a finite number in num_local_experts, it has None"):
        _hf(tmp_path, model_type="mixtral", **experts | {"num_local_experts": None})


def test_the_query_temperature_may_have_a_length_of_its_own(tmp_path: Path) -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 64}
    config = _native(tmp_path, yarn=yarn, llama_4_scaling={"beta": 0.1, "original_max_position_embeddings": 32})
    assert (config.query_temperature, config.max_position) == (QueryTemperature(32, 0.1), 256)


# Layer types, partial rotation, and models of text and images


@pytest.mark.parametrize("lora", [{"enable": False, "rank": 8}, {"rank": 0, "scaling": 0.0}, {}, None])
def test_native_lora_that_is_off_is_nothing(lora: object, tmp_path: Path) -> None:
    assert _native(tmp_path, lora=lora) == _native(tmp_path)


@pytest.mark.parametrize(
    ("family", "windows"), [("llama", (None, None, None)), ("mistral", (None, 5, 5)), ("ministral", (None, 5, 5))]
)
def test_each_family_has_the_windows_that_transformers_gives_it(family: str, windows: tuple, tmp_path: Path) -> None:
    assert _hf(tmp_path, **{**MIXED, "model_type": family}, head_dim=8).windows == windows
    theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).model.layers
    kinds = [getattr(layer.self_attn, "sliding_window", None) for layer in theirs]
    assert tuple(kinds) == windows


@pytest.mark.parametrize("family", ["mistral", "ministral3"])
def test_a_model_of_text_and_images_has_the_configuration_of_its_text(family: str, tmp_path: Path) -> None:
    """The outer dtype holds if the inner part has none; whether the outer head is tied means nothing."""
    text = {**PUBLISHED, "model_type": family, "sliding_window": None, "head_dim": 16}
    alone = _hf(tmp_path, **text)
    inner = {key: value for key, value in text.items() if key != "torch_dtype"}
    outer = {"model_type": "mistral3", "dtype": "bfloat16", "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps({**outer, "text_config": inner}))
    assert read_config(tmp_path) == alone


def test_names() -> None:
    assert canonical_name("model.layers.11.self_attn.q_proj.weight") == "layers.11.attention.wq.weight"
    assert canonical_name("layers.0.feed_forward.experts.3.w2.weight") == "layers.0.feed_forward.experts.3.w2.weight"
    assert canonical_name("model.layers.0.self_attn.rotary_emb.inv_freq") is None
    for unknown in ("transformer.h.0.weight", "model.layers.0.self_attn.q_proj.bias", "layers.0.attention.wq.bias"):
        with pytest.raises(ModelError, match=f"weight '{unknown}', which no supported model family"):
            canonical_name(unknown)


@pytest.mark.parametrize(
    ("generation", "ends", "sampling"),
    [
        (
            {"eos_token_id": [7, 8], "temperature": 0.6, "top_p": 0.9, "max_length": 4},
            (7, 8),
            {"temperature": 0.6, "top_p": 0.9},
        ),
        ({"eos_token_id": 7, "do_sample": False, "temperature": 0.6}, (7,), {}),
        ({"do_sample": True, "top_k": 5, "repetition_penalty": 1.1}, (2,), {"top_k": 5, "repetition_penalty": 1.1}),
    ],
)
def test_generation_defaults(generation: dict, ends: tuple, sampling: dict, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**PUBLISHED, "eos_token_id": 2}))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    defaults = read_generation(tmp_path)
    assert (defaults.eos_token_ids, defaults.sampling) == (ends, sampling)


def test_a_request_is_completed_unless_it_is_greedy() -> None:
    defaults = GenerationDefaults((), {"temperature": 0.3, "repetition_penalty": 1.1})
    assert defaults.completed({"top_k": 5}) == {"temperature": 0.3, "repetition_penalty": 1.1, "top_k": 5}
    assert defaults.completed({"temperature": 1}) == {"temperature": 1, "repetition_penalty": 1.1}
    assert defaults.completed({"temperature": 0.0}) == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("config", "ends"),
    [
        ({"eos_token_id": [2, 4]}, (2, 4)),
        ({"text_config": {"eos_token_id": [3, 4]}}, (3, 4)),
        ({"eos_token_id": 2, "text_config": {"eos_token_id": 3}}, (2,)),
        ({"text_config": {}}, ()),
    ],
)
def test_end_tokens_of_every_configuration(config: dict, ends: tuple, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_generation(tmp_path).eos_token_ids == ends
