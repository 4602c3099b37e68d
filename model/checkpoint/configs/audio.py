"""AudioConfig from `audio_config` in a config.json, or from `whisper_model_args` in Mistral's params.json. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from model.audio.sizes import CHUNK_SECONDS, HOP, N_FFT, RATE
from model.checkpoint.configs.fields import check_keys, check_values, has_encoder, number, number_of_layers, size
from model.checkpoint.files import ShardFile
from model.config.audio import POSITIONS, AudioConfig
from model.errors import ModelError, short

REALTIME = "an audio encoder with a cache of its own (Voxtral Realtime)"
"""Missing features of Noria, for a message."""
HF_FILE, NATIVE_FILE = "audio_config in config.json", "whisper_model_args in params.json"
HF_DEFAULTS: Mapping[str, Any] = {
    "model_type": "voxtral_encoder",
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "num_mel_bins": 128,
    "max_source_positions": POSITIONS,
    "activation_function": "gelu",
    "scale_embedding": False,
}
"""The values of transformers for fields that `audio_config` does not have."""
HF_ONLY: Mapping[str, Any] = {"model_type": "voxtral_encoder", "activation_function": "gelu", "scale_embedding": False}
OUTER_ONLY: Mapping[str, Any] = {"projector_hidden_act": "gelu"}
"""The same for fields beside `audio_config`."""
HF_ALIASES: Mapping[str, str] = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}
"""Whisper's names of fields, which transformers reads too."""
ENCODER_SIZES = ("dim", "n_heads", "hidden_dim", "max_source_positions")
ENCODER_ONLY: Mapping[str, tuple[Any, ...]] = {
    "causal": (False,),
    "use_biases": (True,),
    "pos_embed": ("sinusoidal", None),
    "norm_type": ("layer_norm", None),
    "ffn_type": ("gelu", None),
    "sliding_window": (None,),
}
"""Keys of `encoder_args` that may only have these values. A causal encoder is that of Voxtral Realtime."""
SPECTRUM: Mapping[str, Any] = {
    "sampling_rate": RATE,
    "hop_length": HOP,
    "window_size": N_FFT,
    "chunk_length_s": CHUNK_SECONDS,
}
"""Keys of `audio_encoding_args`, each with Whisper's value."""
ENCODER_MORE = ("n_layers", "head_dim", "n_kv_heads", "norm_eps", "audio_encoding_args")
MEANINGLESS = ("vocab_size", "use_cache", "rope_theta")
"""Keys of `encoder_args` that say nothing about an encoder without a decoder and without RoPE."""
SPECTRUM_MORE = ("num_mel_bins", "frame_rate", "transcription_format")


def read_audio(raw: Mapping[str, Any], shards: Sequence[ShardFile]) -> AudioConfig | None:
    """Read the audio encoder of a `config.json` of model_type voxtral; None for a model whose files do not have it.

    Raises ModelError, which names the field and its value, for an encoder that Noria does not have.
    """
    declared = raw.get("audio_config")
    if not has_encoder(shards, declared):
        return None
    if not isinstance(declared, dict):
        raise ModelError(f"config.json must have an object in audio_config, it has {short(declared)}")
    inner = {**HF_DEFAULTS, **{HF_ALIASES.get(key, key): value for key, value in declared.items()}}
    check_values(inner, HF_ONLY, HF_FILE)
    check_values({**OUTER_ONLY, **raw}, OUTER_ONLY, "config.json")
    dim, hidden_dim = (size(inner, key, HF_FILE) for key in ("hidden_size", "intermediate_size"))
    if hidden_dim % dim:
        raise ModelError(
            f"{HF_FILE} must have a multiple of hidden_size ({dim}) in intermediate_size, it has {hidden_dim}"
        )
    return AudioConfig(
        dim=dim,
        n_layers=number_of_layers(inner, "num_hidden_layers", HF_FILE),
        n_heads=size(inner, "num_attention_heads", HF_FILE),
        hidden_dim=hidden_dim,
        n_mels=size(inner, "num_mel_bins", HF_FILE),
        n_positions=size(inner, "max_source_positions", HF_FILE),
        group=hidden_dim // dim,  # transformers takes as many positions for a token as fill this width
        stores_positions=True,
    )


def read_native_audio(raw: Any, shards: Sequence[ShardFile]) -> AudioConfig | None:
    """Read the same from `whisper_model_args` of a `params.json`. Raises ModelError also for an unknown key."""
    if raw is None or not has_encoder(shards, raw):
        return None
    known = check_keys(raw, ("encoder_args", "downsample_args"), NATIVE_FILE)
    where = f"encoder_args of {NATIVE_FILE}"
    keys = (*ENCODER_SIZES, *ENCODER_ONLY, *ENCODER_MORE, *MEANINGLESS)
    encoder = check_keys(known.get("encoder_args"), keys, where)
    if encoder.get("causal"):
        raise ModelError(
            f"{where} has causal true, which needs {REALTIME}: Noria has none; it serves Voxtral Mini and Small of "
            "July 2025"
        )
    for key, values in ENCODER_ONLY.items():
        if key in encoder and encoder[key] not in values:
            raise ModelError(f"{where} has {key} {short(encoder[key])}; Noria supports {values[0]!r}")
    below = f"audio_encoding_args of {where}"
    spectrum = check_keys(encoder.get("audio_encoding_args"), (*SPECTRUM, *SPECTRUM_MORE), below)
    check_values({**SPECTRUM, **spectrum}, SPECTRUM, below)
    down = f"downsample_args of {NATIVE_FILE}"
    dim, n_heads, hidden_dim, n_positions = (
        size({"max_source_positions": POSITIONS, **encoder}, key, where) for key in ENCODER_SIZES
    )
    for key, value in (("head_dim", dim // n_heads), ("n_kv_heads", n_heads)):
        if encoder.get(key, value) != value:
            raise ModelError(
                f"{where} must have {value} in {key}, for dim {dim} and n_heads {n_heads}; it has {short(encoder[key])}"
            )
    return AudioConfig(
        dim=dim,
        n_heads=n_heads,
        hidden_dim=hidden_dim,
        n_positions=n_positions,
        n_layers=number_of_layers(encoder, "n_layers", where),
        n_mels=size(spectrum, "num_mel_bins", below),
        group=size(check_keys(known.get("downsample_args"), ("downsample_factor",), down), "downsample_factor", down),
        norm_eps=number({"norm_eps": 1e-5, **encoder}, "norm_eps", where),
    )
