"""Configs as published and as transformers writes them. Oracle: transformers' own reading of the same file."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, LlamaConfig, MinistralConfig, MistralConfig, MixtralConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from model.checkpoint.families import FAMILIES, read_config
from model.checkpoint.generation_config import read_generation
from model.checkpoint.names import canonical_name
from model.config import ModelConfig, RopeScaling
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


def _hf(directory: Path, **changes: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps({**PUBLISHED, **changes}))
    return read_config(directory)


def _native(directory: Path, **changes: Any) -> ModelConfig:
    (directory / "params.json").write_text(json.dumps({**NATIVE, **changes}))
    return read_config(directory)


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES, tie_word_embeddings=True, dtype="bfloat16"),
        LlamaConfig(**SIZES, head_dim=24, dtype="float16"),
        MistralConfig(**SIZES, sliding_window=7, dtype="bfloat16"),
        MistralConfig(
            **SIZES, sliding_window=None, rope_parameters={"rope_theta": 5e5, "rope_type": "default"}, dtype="float32"
        ),
        MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=3, dtype="bfloat16"),
        MinistralConfig(
            **SIZES,
            sliding_window=5,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"],
            dtype="bfloat16",
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_reads_what_transformers_writes(config: Any, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    mine = read_config(tmp_path)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * 3
    assert mine == ModelConfig(
        family=config.model_type,
        dim=32,
        n_layers=3,
        n_heads=4,
        n_kv_heads=2,
        head_dim=config.head_dim or 8,
        hidden_dim=48,
        vocab_size=64,
        norm_eps=1e-5,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position=128,
        windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        n_experts=getattr(config, "num_local_experts", 0),
        n_experts_per_token=getattr(config, "num_experts_per_tok", 0),
        tied_head=config.tie_word_embeddings,
        dtype=str(config.dtype).removeprefix("torch."),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_silence_means_what_it_means_to_transformers(family: str, tmp_path: Path) -> None:
    """config.json has no theta, window, head size or kv heads."""
    sparse = {"num_local_experts": 4, "num_experts_per_tok": 2}
    mine = _hf(tmp_path, model_type=family, **sparse)
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert mine.rope_theta == theirs.rope_parameters["rope_theta"]
    assert set(mine.windows) == {getattr(theirs, "sliding_window", None)}
    assert mine.head_dim == 8


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear", "factor": 4.0}, RopeScaling("linear", 4.0)),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            RopeScaling("llama3", 8.0, 64, 1.0, 4.0),
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0},
            RopeScaling("yarn", 4.0, 32, beta_fast=16.0),
        ),
    ],
    ids=["linear", "llama3", "yarn"],
)
@pytest.mark.parametrize("form", ["published", "transformers 5"])
def test_rope_scaling_in_both_forms(form: str, scaling: dict, expected: RopeScaling, tmp_path: Path) -> None:
    if form == "published":
        config = _hf(tmp_path, rope_theta=5e5, rope_scaling=scaling)
    else:
        config = _hf(tmp_path, rope_parameters={"rope_theta": 5e5, **scaling})
    assert config.rope_theta == 5e5
    assert config.rope_scaling == expected


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


def test_other_scalings_do_not_stretch_the_context(tmp_path: Path) -> None:
    _hf(tmp_path, rope_scaling={"type": "linear", "factor": 2.0})
    assert read_config(tmp_path, max_model_len=200).max_position == 128


def test_rope_fraction(tmp_path: Path) -> None:
    assert _hf(tmp_path, rope_fraction=0.25).rope_fraction == 0.25
    assert _hf(tmp_path, rope_fraction=0.0).rope_fraction == 0.0
    assert _hf(tmp_path, rope_fraction=None, partial_rotary_factor=1.0).rope_fraction == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen2"}, "model_type 'qwen2'; Noria supports mistral, ministral, mixtral, llama"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'; Noria supports silu"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope'; Noria supports default, linear"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor of at least 1, it has 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "per layer type"),
        ({"layer_types": ["chunked_attention"] * 3}, "'chunked_attention' in layer_types"),
        ({"mlp_bias": True}, "mlp_bias true; Noria supports models without it"),
        ({"attention_bias": True}, "attention_bias true; Noria supports models without it"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0\.5; Noria supports 1\.0"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, r"partial_rotary_factor 0\.25; Noria supports 1\.0"),
        (
            {"rope_parameters": {"rope_type": "proportional"}},
            "rope_type 'proportional'; Noria supports default",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": False}}, "truncate false in its yarn scaling"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.7}}, r"mscale 0\.7 in its yarn scaling"),
        ({"hidden_size": None}, "a number in hidden_size, it has None"),
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


def test_native_window_list_repeats(tmp_path: Path) -> None:
    assert _native(tmp_path, sliding_window=[9, None]).windows == (9, None, 9)


def test_native_mixture_of_experts(tmp_path: Path) -> None:
    config = _native(tmp_path, moe={"num_experts": 8, "num_experts_per_tok": 2})
    assert (config.family, config.n_experts, config.n_experts_per_token) == ("mixtral", 8, 2)


@pytest.mark.parametrize("key", ["vision_encoder", "yarn"])
def test_native_refuses_what_would_be_ignored(key: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"params.json has '{key}'; Noria does not support it"):
        _native(tmp_path, **{key: {"some": 1}})


def test_names() -> None:
    assert canonical_name("model.layers.11.self_attn.q_proj.weight") == "layers.11.attention.wq.weight"
    assert canonical_name("layers.0.feed_forward.experts.3.w2.weight") == "layers.0.feed_forward.experts.3.w2.weight"
    assert canonical_name("model.layers.0.self_attn.rotary_emb.inv_freq") is None
    assert canonical_name("lm_head.weight", tied_head=True) is None
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
    defaults = read_generation(tmp_path, eos_id=5)
    assert (defaults.eos_token_ids, defaults.sampling) == (ends, sampling)


def test_the_tokenizer_names_the_end_token_where_no_file_does(tmp_path: Path) -> None:
    _hf(tmp_path)
    assert read_generation(tmp_path, eos_id=5).eos_token_ids == (5,)
