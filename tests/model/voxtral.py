"""A small random model that hears: a directory in Hugging Face's form, and in Mistral's. Nothing uses our reading."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from tests.model.checkpoint.native_files import half_to_adjacent, native_name, native_params
from tests.model.tokenizers.tekken_files import write_tekken

NAMES = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "<20>", "<21>", "<22>", "<23>"),
    *("[AUDIO]", "[BEGIN_AUDIO]", *(f"<{rank}>" for rank in range(26, 34)), "[TRANSCRIBE]"),
)
"""The control tokens by id, those of audio as in Voxtral's file; then follow the 256 bytes."""
VOCAB = len(NAMES) + 256
AUDIO, BEGIN_AUDIO = NAMES.index("[AUDIO]"), NAMES.index("[BEGIN_AUDIO]")
TEXT: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e8,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
ENCODER: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_mel_bins": 128,
    "initializer_range": 0.2,
}
"""Whisper's form with 1500 positions, four of them a token, and few channels."""
SPECTRUM = {"sampling_rate": 16000, "frame_rate": 12.5, "num_mel_bins": 128, "hop_length": 160, "window_size": 400}
SPECTRUM |= {"chunk_length_s": 30.0}


@cache
def build() -> Any:
    """The model of transformers, in float32, with Whisper's positions. Its norms and biases are random too."""
    torch.manual_seed(1)
    config = transformers.VoxtralConfig(
        audio_config={**ENCODER}, text_config={**TEXT}, audio_token_id=AUDIO, tie_word_embeddings=False
    )
    model = transformers.VoxtralForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        table = model.model.audio_tower.embed_positions.weight
        table.copy_(transformers.models.whisper.modeling_whisper.sinusoids(*table.shape))
    return model.eval()


def save_hf(directory: Path) -> Path:
    """Write the model as transformers does, with Mistral's tokenizer, as the published model has it."""
    directory.mkdir(parents=True, exist_ok=True)
    build().save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": NAMES.index("</s>")}))
    _save_tokenizer(directory)
    return directory


def save_native(directory: Path) -> Path:
    """Write the same model as Mistral does: `params.json`, `consolidated.safetensors` and `tekken.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "params.json").write_text(json.dumps(params()))
    save_file(native_tensors(), directory / "consolidated.safetensors")
    _save_tokenizer(directory)
    return directory


def params() -> dict[str, Any]:
    config = build().config.to_dict()
    text = {key: value for key, value in native_params(config["text_config"]).items() if value is not None}
    theirs = config["audio_config"]
    encoder = {
        "audio_encoding_args": SPECTRUM,
        "dim": theirs["hidden_size"],
        "n_layers": theirs["num_hidden_layers"],
        "head_dim": 16,
        "hidden_dim": theirs["intermediate_size"],
        "n_heads": theirs["num_attention_heads"],
        "vocab_size": 51866,
        "max_source_positions": 1500,
        "use_biases": True,
        "use_cache": False,
        "causal": False,
        "norm_eps": 1e-5,
    }
    return {
        **text,
        "multimodal": {"whisper_model_args": {"encoder_args": encoder, "downsample_args": {"downsample_factor": 4}}},
    }


def native_tensors() -> dict[str, Tensor]:
    """All weights but the positions, under Mistral's names; rows of q and k of the text model are adjacent pairs."""
    found = {}
    for name, tensor in build().state_dict().items():
        known = _native_name(name.removeprefix("model."))
        if known is None:
            continue
        rotated = known.startswith("layers.") and known.endswith((".wq.weight", ".wk.weight"))
        found[known] = half_to_adjacent(tensor, 16).contiguous() if rotated else tensor.contiguous()
    return found


_PARTS = {"self_attn": "attention", "q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "out_proj": "wo"}
_PARTS |= {"self_attn_layer_norm": "attention_norm", "final_layer_norm": "ffn_norm"}
_PARTS |= {"fc1": "feed_forward.w1", "fc2": "feed_forward.w2"}
_WHISPER = "mm_whisper_embeddings.whisper_encoder"
_STEMS = {
    "audio_tower.conv1": f"{_WHISPER}.conv_layers.0",
    "audio_tower.conv2": f"{_WHISPER}.conv_layers.1",
    "audio_tower.layer_norm": f"{_WHISPER}.transformer.norm",
    "multi_modal_projector.linear_1": "mm_whisper_embeddings.audio_language_projection.0",
    "multi_modal_projector.linear_2": "mm_whisper_embeddings.audio_language_projection.2",
    "language_model.embed_tokens": "mm_whisper_embeddings.tok_embeddings",
}


def _native_name(name: str) -> str | None:
    """Mistral's name of a weight, from that of transformers 5; None for one that Mistral's files do not have."""
    stem, _, leaf = name.rpartition(".")
    if stem in _STEMS:
        return f"{_STEMS[stem]}.{leaf}"
    if stem == "audio_tower.embed_positions":
        return None
    if name.startswith("audio_tower.layers."):
        parts = stem.removeprefix("audio_tower.").split(".")
        return ".".join((_WHISPER, "transformer", *(_PARTS.get(part, part) for part in parts), leaf))
    return native_name(name if name.startswith("lm_head") else f"model.{name.removeprefix('language_model.')}")


def _save_tokenizer(directory: Path) -> None:
    audio: dict[str, Any] = {key: SPECTRUM[key] for key in ("sampling_rate", "frame_rate", "chunk_length_s")}
    audio["audio_encoding_config"] = {key: SPECTRUM[key] for key in ("num_mel_bins", "hop_length", "window_size")}
    write_tekken(directory, "v7", size=256, special=NAMES, n_special=len(NAMES), audio=audio)
