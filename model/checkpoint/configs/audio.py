"""AudioConfig from the fields of an audio encoder, whatever the file's format. No torch.

`audio_config` of a config.json and `whisper_model_args` of Mistral's params.json become these.
"""

from collections.abc import Mapping
from typing import Any

from model.audio.sizes import CHUNK_SECONDS, HOP, N_FFT, RATE
from model.checkpoint.configs.fields import Fields, check_keys
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
ONLY: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("voxtral_encoder",),
    "activation_function": ("gelu",),
    "scale_embedding": (False,),
}
"""Fields that may only have these values."""
HF_ALIASES: Mapping[str, str] = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}
"""Whisper's names of fields, which transformers reads too."""
OWN: Mapping[str, str] = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "max_source_positions": "max_source_positions",
    "norm_eps": "norm_eps",
}
"""Fields that `encoder_args` has, and its names of them."""
ENCODER_ONLY: Mapping[str, tuple[Any, ...]] = {
    "causal": (False,),
    "use_biases": (True,),
    "pos_embed": ("sinusoidal", None),
    "norm_type": ("layer_norm", None),
    "ffn_type": ("gelu", None),
    "sliding_window": (None,),
}
"""Keys of `encoder_args` that may only have these values. A causal encoder is that of Voxtral Realtime."""
SPECTRUM: Mapping[str, tuple[Any, ...]] = {
    "sampling_rate": (RATE,),
    "hop_length": (HOP,),
    "window_size": (N_FFT,),
    "chunk_length_s": (CHUNK_SECONDS,),
}
"""Keys of `audio_encoding_args`, each with Whisper's value."""
ENCODER_MORE = ("head_dim", "n_kv_heads", "audio_encoding_args")
MEANINGLESS = ("vocab_size", "use_cache", "rope_theta")
"""Keys of `encoder_args` that say nothing about an encoder without a decoder and without RoPE."""
SPECTRUM_MORE = ("num_mel_bins", "frame_rate", "transcription_format")


def read_audio(raw: Fields) -> AudioConfig:
    """Read an audio encoder. Raises ModelError, which names the field and its value, for one that Noria does not have.

    The fields are those of `audio_config`, with `group`, `norm_eps` and `stores_positions` as in AudioConfig.
    """
    raw.check(ONLY)
    return AudioConfig(
        dim=raw.size("hidden_size"),
        n_layers=raw.n_layers("num_hidden_layers"),
        n_heads=raw.size("num_attention_heads"),
        hidden_dim=raw.size("intermediate_size"),
        n_mels=raw.size("num_mel_bins"),
        n_positions=raw.size("max_source_positions"),
        group=raw.size("group"),
        norm_eps=raw.number("norm_eps"),
        stores_positions=raw["stores_positions"],
    )


def hf_audio(raw: Mapping[str, Any]) -> Fields:
    """Return the fields of the encoder in a `config.json` of model_type voxtral. Raises ModelError for a wrong one."""
    declared = raw.get("audio_config")
    if not isinstance(declared, dict):
        raise ModelError(f"config.json must have an object in audio_config, it has {short(declared)}")
    Fields(raw, "config.json").check({"projector_hidden_act": ("gelu",)})
    inner = Fields({**HF_DEFAULTS, **{HF_ALIASES.get(key, key): value for key, value in declared.items()}}, HF_FILE)
    dim, hidden_dim = (inner.size(key) for key in ("hidden_size", "intermediate_size"))
    if hidden_dim % dim:
        raise ModelError(
            f"{HF_FILE} must have a multiple of hidden_size ({dim}) in intermediate_size, it has {hidden_dim}"
        )
    # transformers takes as many positions for a token as fill the inner width
    more = {"group": hidden_dim // dim, "norm_eps": 1e-5, "stores_positions": True}
    return Fields({**inner.values, **more}, HF_FILE)


def native_audio(raw: object) -> Fields:
    """Return the fields of `whisper_model_args` in a `params.json`. Raises ModelError also for an unknown key."""
    known = check_keys(raw, ("encoder_args", "downsample_args"), NATIVE_FILE)
    where = f"encoder_args of {NATIVE_FILE}"
    keys = (*OWN.values(), *ENCODER_ONLY, *ENCODER_MORE, *MEANINGLESS)
    encoder = check_keys(known.get("encoder_args"), keys, where)
    if encoder.get("causal"):
        raise ModelError(
            f"{where} has causal true, which needs {REALTIME}: Noria has none; it serves Voxtral Mini and Small of "
            "July 2025"
        )
    encoder.check(ENCODER_ONLY)
    dim, n_heads = (encoder.size(key) for key in ("dim", "n_heads"))
    for key, value in (("head_dim", dim // n_heads), ("n_kv_heads", n_heads)):
        if encoder.get(key, value) != value:
            raise ModelError(
                f"{where} must have {value} in {key}, for dim {dim} and n_heads {n_heads}; it has {short(encoder[key])}"
            )
    below = f"audio_encoding_args of {where}"
    spectrum = check_keys(encoder.get("audio_encoding_args"), (*SPECTRUM, *SPECTRUM_MORE), below)
    spectrum.check(SPECTRUM)
    down = check_keys(known.get("downsample_args"), ("downsample_factor",), f"downsample_args of {NATIVE_FILE}")
    values = {"max_source_positions": POSITIONS, "norm_eps": 1e-5}
    values |= {key: encoder[name] for key, name in OWN.items() if name in encoder}
    values |= {"num_mel_bins": spectrum.size("num_mel_bins"), "group": down.size("downsample_factor")}
    return Fields({**values, "stores_positions": False}, where, OWN)
