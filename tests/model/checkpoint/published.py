"""Configurations of published models of the family, as their files have them, and what they mean by hand.

The numbers of parameters are those that the model cards give (Mistral 7B, Ministral 8B, Llama, SmolLM2), or round to
what they give. They are of the text model alone: 3.4 and 8.5 billion for Ministral 3. The image encoder has 0.4
billion more. The sizes of Mistral Medium 3.5 are of its shape only. So are those of Pixtral Large: its card gives the
text model of Large 2, an encoder of 1 billion, and 124 billion for both.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.model.checkpoint.quantized_files import FORMS

Windows = Mapping[int | None, int]
"""The number of layers with each window."""


class Row(NamedTuple):
    """A file's name and fields, and what follows from them: parameters, bytes of keys and values of a token in
    bfloat16 (4 * layers * key heads * head_dim; 2 * layers * (latent + rope key) with latent attention), the layers
    with each window, the context, and the parameters of the image encoder, 0 for a model of text."""

    file: str
    config: Mapping[str, Any]
    parameters: int
    token_bytes: int
    windows: Windows
    context: int
    encoder: int = 0


MINISTRAL_WINDOWS: Windows = {None: 9, 32768: 27}


def full(layers: int) -> Windows:
    """All layers with full attention."""
    return {None: layers}


def hf(
    kind: str, dim: int, layers: int, heads: int, kv_heads: int, hidden: int, vocab: int, context: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": dim,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": hidden,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        **more,
    }


def with_images(text: Mapping[str, Any]) -> dict[str, Any]:
    """A mistral3 model; its own level says by default that the head is tied."""
    inner = {key: value for key, value in text.items() if key != "torch_dtype"}
    return {
        "model_type": "mistral3",
        "dtype": "bfloat16",
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": False,
        "vision_config": {"model_type": "pixtral", **ENCODER, "head_dim": 64, "hidden_act": "silu"},
        "text_config": inner,
    }


def llava_parameters(hidden: int, inner: int, layers: int, dim: int) -> int:
    """Weights of an encoder with patches of 16 x 16 pixels, and of two projections without biases."""
    return layers * (4 * hidden**2 + 3 * hidden * inner + 2 * hidden) + hidden * 769 + hidden * dim + dim**2


def encoder_parameters(dim: int) -> int:
    """Weights of the encoder of mistral3 models, and of what joins it to a text model of `dim`.

    A layer has 4 matrices of 1024 x 1024, 3 of 1024 x 4096 and 2 norms. Patches are 14 x 14 pixels of 3 colours.
    """
    layer = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
    return 24 * layer + 1024 * 588 + 1024 + 1024 + 4096 * 1024 + 1024 * dim + dim * dim


def native(dim: int, layers: int, heads: int, kv_heads: int, hidden: int, vocab: int, **more: Any) -> dict[str, Any]:
    sizes = {"dim": dim, "n_layers": layers, "n_heads": heads, "n_kv_heads": kv_heads, "hidden_dim": hidden}
    return {**sizes, "head_dim": 128, "norm_eps": 1e-5, "vocab_size": vocab, **more}


def yarn(theta: float, factor: float, original: int, beta: float | None = 0.1, **more: Any) -> dict[str, Any]:
    rope = {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "original_max_position_embeddings": original}
    return {**rope, "beta_slow": 1.0, "llama_4_scaling_beta": beta, "beta_fast": 32.0, "mscale": 1.0, **more}


ENCODER: Mapping[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 1540,
    "patch_size": 14,
    "rope_theta": 10000.0,
}
NATIVE_ENCODER = {**ENCODER, "max_image_size": 1540, "image_token_id": 10, "image_break_token_id": 12}
NATIVE_ENCODER |= {"image_end_token_id": 13, "mm_projector_id": "patch_merge", "spatial_merge_size": 2}
NATIVE_ENCODER |= {"add_pre_mm_projector_layer_norm": True, "adapter_bias": False}
NATIVE_PIXTRAL = {**ENCODER, "image_size": 1024, "patch_size": 16, "adapter_bias": True}
NATIVE_PIXTRAL |= {"image_token_id": 10, "image_break_token_id": 12, "image_end_token_id": 13}
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None, "rope_theta": 1e6}
NEMO = {"head_dim": 128, "sliding_window": None, "rope_theta": 1e6}
SMALL = {"head_dim": 128, "sliding_window": None, "rope_theta": 1e8}
UNSCALED = {"mscale_all_dim": 1.0}
LATENT = {"q_lora_rank": 1024, "kv_lora_rank": 256, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 128}
SMALL_4 = {
    **LATENT,
    "n_routed_experts": 128,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "rope_interleave": True,
    "rope_parameters": yarn(1e4, 128.0, 8192, **UNSCALED),
}
NATIVE_SMALL_4 = {
    **LATENT,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1_048_576,
    "tied_embeddings": False,
    "llama_4_scaling": {"original_max_position_embeddings": 8192, "beta": 0.1},
    "yarn": {"factor": 128, "original_max_position_embeddings": 8192, "beta": 32, "alpha": 1, "apply_scale": False},
    "moe": {
        "expert_parallel": 1,
        "expert_model_parallel": 1,
        "route_every_n": 1,
        "first_k_dense_replace": 0,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "num_expert_groups": 1,
        "num_expert_groups_per_tok": 1,
        "routed_scale": 1.0,
        "expert_hidden_dim": 2048,
        "num_shared_experts": 1,
    },
    "vision_encoder": NATIVE_ENCODER,
}
"""The keys of the published params.json."""
NATIVE_YARN = {"factor": 16, "original_max_position_embeddings": 16384, "beta": 32, "alpha": 1, "apply_scale": False}
NATIVE_3B = {"yarn": NATIVE_YARN, "llama_4_scaling": {"original_max_position_embeddings": 16384, "beta": 0.1}}
NATIVE_3B |= {"tied_embeddings": True, "max_position_embeddings": 262144, "vision_encoder": NATIVE_ENCODER}
NATIVE_3B |= dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))


def whisper_parameters(dim: int) -> int:
    """Parameters of Whisper large's encoder, with its positions, and of the projections to `dim`."""
    block = 4 * 1280**2 + 3 * 1280 + 2 * 1280 * 5120 + 5120 + 1280 + 4 * 1280
    return (128 + 1280) * 3 * 1280 + 2 * 1280 + 1500 * 1280 + 32 * block + 2 * 1280 + (5120 + dim) * dim


def _config(parameters: int, token_bytes: int, windows: Windows, context: int, config: Mapping[str, Any]) -> Row:
    encoder = encoder_parameters(config["text_config"]["hidden_size"]) if config["model_type"] == "mistral3" else 0
    return Row("config.json", config, parameters, token_bytes, windows, context, encoder)


def _params(parameters: int, token_bytes: int, windows: Windows, context: int, config: Mapping[str, Any]) -> Row:
    encoder = encoder_parameters(config["dim"]) if "vision_encoder" in config else 0
    return Row("params.json", config, parameters, token_bytes, windows, context, encoder)


def _ministral3(dim: int, layers: int, hidden: int, theta: float, *, tied: bool) -> dict[str, Any]:
    rope = yarn(theta, 16.0, 16384, **UNSCALED)
    more = {"head_dim": 128, "rope_parameters": rope, "tie_word_embeddings": tied, "sliding_window": None}
    return with_images(hf("ministral3", dim, layers, 32, 8, hidden, 131072, 262144, **more))


PIXTRAL: dict[str, Any] = {
    "model_type": "llava",
    "image_token_index": 10,
    "projector_hidden_act": "gelu",
    "torch_dtype": "bfloat16",
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "text_config": hf("mistral", 5120, 40, 32, 8, 14336, 131072, 1_024_000, **{**NEMO, "rope_theta": 1e9}),
    "vision_config": {
        "model_type": "pixtral",
        "head_dim": 64,
        "hidden_act": "silu",
        "image_size": 1024,
        "patch_size": 16,
    },
}
"""What its `vision_config` does not say is the default of transformers."""
LARGE2 = hf("mistral", 12288, 88, 96, 8, 28672, 32768, 131072, **NEMO)
PIXTRAL_LARGE = {
    **PIXTRAL,
    "multimodal_projector_bias": False,
    "text_config": {**LARGE2, "rope_theta": 1e9},
    "vision_config": {
        **PIXTRAL["vision_config"],
        "hidden_size": 1408,
        "intermediate_size": 6144,
        "num_hidden_layers": 40,
        "head_dim": 88,
    },
}
VOXTRAL: dict[str, Any] = {
    "model_type": "voxtral",
    "audio_token_id": 24,
    "projector_hidden_act": "gelu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "text_config": hf("llama", 3072, 30, 32, 8, 8192, 131072, 131072, head_dim=128, rope_theta=1e8),
    "audio_config": {"model_type": "voxtral_encoder"},
}
"""What its `audio_config` does not say is Whisper large's, the default of transformers."""
VOXTRAL_SMALL = {
    **VOXTRAL,
    "text_config": hf("llama", 5120, 40, 32, 8, 32768, 131072, 131072, head_dim=128, rope_theta=1e8),
}
VOXTRAL_NATIVE: dict[str, Any] = {
    "dim": 3072,
    "n_layers": 30,
    "n_heads": 32,
    "n_kv_heads": 8,
    "head_dim": 128,
    "hidden_dim": 8192,
    "vocab_size": 131072,
    "norm_eps": 1e-5,
    "rope_theta": 1e8,
    "max_position_embeddings": 131072,
    "multimodal": {
        "whisper_model_args": {
            "encoder_args": {
                "audio_encoding_args": {
                    "sampling_rate": 16000,
                    "num_mel_bins": 128,
                    "hop_length": 160,
                    "window_size": 400,
                },
                "dim": 1280,
                "n_layers": 32,
                "n_heads": 20,
                "head_dim": 64,
                "hidden_dim": 5120,
                "max_source_positions": 1500,
                "use_biases": True,
                "causal": False,
            },
            "downsample_args": {"downsample_factor": 4},
        }
    },
}
ROWS: Mapping[str, Row] = {
    "Mistral 7B v0.1": _config(
        7_241_732_096,
        131072,
        {4096: 32},
        32768,
        hf("mistral", 4096, 32, 32, 8, 14336, 32000, 32768, sliding_window=4096),
    ),
    "Codestral 22B": _config(
        *(22_247_282_688, 229376, full(56), 32768),
        hf("mistral", 6144, 56, 48, 8, 16384, 32768, 32768, sliding_window=None, rope_theta=1e6),
    ),
    "Mixtral 8x22B": _config(
        *(140_620_634_112, 229376, full(56), 65536), hf("mixtral", 6144, 56, 48, 8, 16384, 32000, 65536, **EXPERTS)
    ),
    "Nemo 12B": _config(
        12_247_782_400, 163840, full(40), 131072, hf("mistral", 5120, 40, 32, 8, 14336, 131072, 131072, **NEMO)
    ),
    "Pixtral 12B": Row(*("config.json", PIXTRAL, 12_247_782_400, 163840, full(40), 1_024_000), encoder=434_957_312),
    "Pixtral 12B, native": Row(
        "params.json",
        native(5120, 40, 32, 8, 14336, 131072, rope_theta=1e9, max_seq_len=131072, vision_encoder=NATIVE_PIXTRAL),
        *(12_247_782_400, 163840, full(40), 131072),
        encoder=434_957_312,
    ),
    "Large 2": _config(122_610_069_504, 360448, full(88), 131072, LARGE2),
    "Voxtral Mini 3B": Row(
        *("config.json", VOXTRAL, 4_014_136_320, 122880, full(30), 131072), encoder=whisper_parameters(3072)
    ),
    "Voxtral Mini 3B, native": Row(
        *("params.json", VOXTRAL_NATIVE, 4_014_136_320, 122880, full(30), 131072),
        encoder=whisper_parameters(3072) - 1500 * 1280,
    ),
    "Voxtral Small 24B": Row(
        *("config.json", VOXTRAL_SMALL, 23_572_403_200, 163840, full(40), 131072), encoder=whisper_parameters(5120)
    ),
    "Pixtral Large shape": Row(
        *("config.json", PIXTRAL_LARGE, 122_610_069_504, 360448, full(88), 131072),
        encoder=llava_parameters(1408, 6144, 40, 12288),
    ),
    "Small 24B 2501": _config(
        23_572_403_200, 163840, full(40), 32768, hf("mistral", 5120, 40, 32, 8, 32768, 131072, 32768, **SMALL)
    ),
    "Small 3.2, Devstral, Magistral": _config(
        *(23_572_403_200, 163840, full(40), 131072),
        with_images(hf("mistral", 5120, 40, 32, 8, 32768, 131072, 131072, **SMALL)),
    ),
    "Small 4": _config(
        *(118_972_826_624, 23040, full(36), 1_048_576),
        with_images(hf("mistral4", 4096, 36, 32, 32, 12288, 131072, 1_048_576, **SMALL_4)),
    ),
    "Small 4, native": _params(
        *(118_972_826_624, 23040, full(36), 1_048_576), native(4096, 36, 32, 32, 12288, 131072, **NATIVE_SMALL_4)
    ),
    "Small 4, NVFP4": _params(
        *(118_972_826_624, 23040, full(36), 1_048_576),
        native(4096, 36, 32, 32, 12288, 131072, **NATIVE_SMALL_4, quantization_config=FORMS["native nvfp4"].config),
    ),
    "Ministral 8B": _config(
        *(8_019_808_256, 147456, MINISTRAL_WINDOWS, 131072),
        hf(
            *("ministral", 4096, 36, 32, 8, 12288, 131072, 131072),
            head_dim=128,
            sliding_window=32768,
            layer_types=["full_attention", *["sliding_attention"] * 3] * 9,
            rope_theta=1e8,
        ),
    ),
    "Ministral 3 3B": _config(3_429_006_336, 106496, full(26), 262144, _ministral3(3072, 26, 9216, 1e6, tied=True)),
    "Ministral 3 3B, native": _params(
        *(3_429_006_336, 106496, full(26), 262144), native(3072, 26, 32, 8, 9216, 131072, rope_theta=1e6, **NATIVE_3B)
    ),
    "Ministral 3 8B": _config(8_489_553_920, 139264, full(34), 262144, _ministral3(4096, 34, 14336, 1e6, tied=False)),
    "Devstral Small 2": _config(
        *(23_572_403_200, 163840, full(40), 393216),
        with_images(
            hf(
                *("ministral3", 5120, 40, 32, 8, 32768, 131072, 393216),
                head_dim=128,
                rope_parameters=yarn(1e8, 48.0, 8192, **UNSCALED),
            )
        ),
    ),
    "Medium 3.5 shape": _config(
        *(125_025_988_608, 360448, full(88), 262144),
        with_images(
            hf(
                *("ministral3", 12288, 88, 96, 8, 28672, 131072, 262144),
                head_dim=128,
                rope_parameters=yarn(1e6, 64.0, 4096, beta=0.0, beta_fast=4.0, mscale_all_dim=0.0),
            )
        ),
    ),
    "Llama 3.1 8B": _config(
        *(8_030_261_248, 131072, full(32), 131072),
        hf(
            *("llama", 4096, 32, 32, 8, 14336, 128256, 131072),
            rope_theta=5e5,
            rope_scaling={**LLAMA3, "factor": 8.0},
            eos_token_id=[128001, 128008, 128009],
        ),
    ),
    "TinyLlama 1.1B": _config(1_100_048_384, 22528, full(22), 2048, hf("llama", 2048, 22, 32, 4, 5632, 32000, 2048)),
    "SmolLM2 135M": _config(
        *(134_515_008, 23040, full(30), 8192),
        hf("llama", 576, 30, 9, 3, 1536, 49152, 8192, rope_theta=1e5, tie_word_embeddings=True),
    ),
}


def written(name: str, directory: Path) -> Path:
    """A directory with the configuration of a row, and no weights."""
    (directory / ROWS[name].file).write_text(json.dumps(ROWS[name].config))
    return directory
