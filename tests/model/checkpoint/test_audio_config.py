"""The audio encoder in configurations: what is read, what is refused, and what has none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from model.checkpoint.config import read_config
from model.checkpoint.names import canonical_name, is_encoder
from model.config.audio import AudioConfig
from model.errors import ModelError
from tests.model import voxtral
from tests.model.checkpoint.published import NATIVE_PIXTRAL, ROWS
from tests.model.driving import loaded

WHISPER = AudioConfig(1280, 32, 20, 5120)
HF, NATIVE = "Voxtral Mini 3B", "Voxtral Mini 3B, native"
REALTIME = {
    "causal": True,
    "pos_embed": "rope",
    "max_source_positions": None,
    "ffn_type": "swiglu",
    "norm_type": "rms_norm",
    "sliding_window": 750,
}
"""How the encoder of Voxtral Realtime differs, in `encoder_args`."""


def read(directory: Path, config: dict[str, Any], file: str = "config.json") -> AudioConfig | None:
    (directory / file).write_text(json.dumps(config))
    return read_config(directory).audio


def hf(**changes: Any) -> dict[str, Any]:
    """With changes of `audio_config`."""
    config = {**ROWS[HF].config}
    return config | {"audio_config": {**config["audio_config"], **changes}}


def native(changes: dict[str, Any], spectrum: dict[str, Any], group: int = 4, **outer: Any) -> dict[str, Any]:
    """With changes of `encoder_args`, of its `audio_encoding_args`, of the factor, and beside `multimodal`."""
    config = {**ROWS[NATIVE].config}
    encoder = config["multimodal"]["whisper_model_args"]["encoder_args"]
    encoder = {**encoder, "audio_encoding_args": {**encoder["audio_encoding_args"], **spectrum}, **changes}
    down = {"downsample_factor": group}
    return config | {"multimodal": {"whisper_model_args": {"encoder_args": encoder, "downsample_args": down}}} | outer


def test_published_encoders(tmp_path: Path) -> None:
    for name in (HF, "Voxtral Small 24B", NATIVE):
        found = read_config_of(name, tmp_path / name)
        assert found is not None
        assert (found.head_dim, found.n_frames, found.seconds, found.max_tokens) == (64, 3000, 30.0, 375)
        assert found.stores_positions == (name != NATIVE)
    assert read_config_of(NATIVE, tmp_path / "again") == WHISPER
    assert read_config_of("Nemo 12B", tmp_path / "text") is None


def read_config_of(name: str, directory: Path) -> AudioConfig | None:
    directory.mkdir()
    return read(directory, {**ROWS[name].config}, ROWS[name].file)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"d_model": 640, "encoder_layers": 3, "encoder_attention_heads": 10, "encoder_ffn_dim": 1280},
        {"hidden_size": 640, "num_hidden_layers": 3, "num_attention_heads": 10, "intermediate_size": 2560},
    ],
    ids=str,
)
def test_fields_are_read_as_transformers_reads_them(fields: dict[str, Any], tmp_path: Path) -> None:
    """Whisper's names too."""
    found = read(tmp_path, hf(**fields))
    theirs = AutoConfig.from_pretrained(tmp_path).audio_config
    assert found is not None
    assert (found.dim, found.n_layers, found.n_heads, found.hidden_dim, found.n_mels, found.n_positions) == (
        *(theirs.hidden_size, theirs.num_hidden_layers, theirs.num_attention_heads, theirs.intermediate_size),
        *(theirs.num_mel_bins, theirs.max_source_positions),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "whisper"}, "audio_config in config.json has model_type 'whisper'; Noria supports 'voxtral_en"),
        ({"activation_function": "relu"}, "config.json has activation_function 'relu'; Noria supports 'gelu'"),
        ({"scale_embedding": True}, "config.json has scale_embedding True; Noria supports False"),
        ({"hidden_size": "a"}, "must have a whole number of at least 1 in hidden_size, it has 'a'"),
        ({"intermediate_size": 5000}, r"a multiple of hidden_size \(1280\) in intermediate_size, it has 5000"),
        ({"num_attention_heads": 7}, "must be n_heads times an even number, it is 1280 with 7 heads"),
        ({"num_hidden_layers": 2000}, "n_layers of the audio encoder must be at most 1024, it is 2000"),
        ({"max_source_positions": 750}, "n_positions of the audio encoder must be 1500, 30 seconds, .* it is 750"),
    ],
    ids=str,
)
def test_encoders_that_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    refused(hf(**changes), "config.json", message, tmp_path)


@pytest.mark.parametrize("field", ["projector_hidden_act", "audio_config"])
def test_fields_beside_the_encoder_are_checked(field: str, tmp_path: Path) -> None:
    message = "projector_hidden_act 'relu'; Noria supports" if field != "audio_config" else "must have an object in au"
    refused({**hf(), field: "relu"}, "config.json", message, tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            native(REALTIME, {}),
            r"causal true, which needs an audio encoder with .* \(Voxtral Realtime\): Noria has none",
        ),
        (
            native(REALTIME, {"global_log_mel_max": 1.5}, ada_rms_norm_t_cond=True, ada_rms_norm_t_cond_dim=32),
            r"params.json has ada_rms_norm_t_cond True, which needs an audio .* \(Voxtral Realtime\): Noria has none",
        ),
        (
            native({"mood": 1}, {}),
            r"encoder_args of .* has 'mood' \(1\), which Noria does not know; it knows audio_enc",
        ),
        (native({}, {"mood": 1}), r"audio_encoding_args of .* has 'mood' \(1\), which Noria does not know"),
        (native({"use_biases": False}, {}), "has use_biases False; Noria supports True"),
        (native({"pos_embed": "rope"}, {}), "has pos_embed 'rope'; Noria supports 'sinusoidal'"),
        (native({"norm_type": "rms_norm"}, {}), "has norm_type 'rms_norm'; Noria supports 'layer_norm'"),
        (native({"ffn_type": "swiglu"}, {}), "has ffn_type 'swiglu'; Noria supports 'gelu'"),
        (native({"sliding_window": 750}, {}), "has sliding_window 750; Noria supports None"),
        (native({"head_dim": 128}, {}), "must have 64 in head_dim, for dim 1280 and n_heads 20; it has 128"),
        (native({"n_kv_heads": 4}, {}), "must have 20 in n_kv_heads, for dim 1280 and n_heads 20; it has 4"),
        (native({"norm_eps": 0}, {}), "norm_eps of the audio encoder must be a number above 0, it is 0"),
        (native({}, {"sampling_rate": 8000}), "has sampling_rate 8000; Noria supports 16000"),
        (native({}, {"chunk_length_s": 15.0}), "has chunk_length_s 15.0; Noria supports 30.0"),
        (native({}, {"num_mel_bins": None}), "must have a whole number of at least 1 in num_mel_bins, it has None"),
        (native({}, {}, group=7), "must be 1500, 30 seconds, a multiple of 7; it is 1500"),
        (native({}, {}, vision_encoder=NATIVE_PIXTRAL), "an encoder of images and one of audio; Noria supports one of"),
    ],
    ids=range(17),
)
def test_native_encoders_that_are_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    refused(config, "params.json", message, tmp_path)


def refused(config: dict[str, Any], file: str, message: str, directory: Path) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read(directory, config, file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("save", [voxtral.save_hf, voxtral.save_native])
def test_without_its_weights_a_model_serves_text(save: Any, tmp_path: Path) -> None:
    """As in a conversion that keeps the whole configuration. Before there are files, the configuration decides."""
    (path,) = save(tmp_path).glob("*.safetensors")
    assert read_config(tmp_path).audio is not None
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if not is_encoder(name)}, path)
    assert read_config(tmp_path).audio is None
    assert loaded(tmp_path).encoder is None
    path.unlink()
    assert read_config(tmp_path).audio is not None


@pytest.mark.parametrize(
    "name",
    [
        "conv2.bias",
        "embed_positions.weight",
        "layers.1.self_attn.v_proj.bias",
        "layer_norm.bias",
        "layers.0.fc1.weight",
    ],
)
def test_a_part_of_an_encoder_is_named(name: str, tmp_path: Path) -> None:
    path = voxtral.save_hf(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    (full,) = (other for other in tensors if other.endswith(f"audio_tower.{name}"))
    save_file({other: tensor for other, tensor in tensors.items() if other != full}, path)
    with pytest.raises(ModelError, match=f"the checkpoint has no tensor '{canonical_name(full)}'$"):
        loaded(tmp_path)
    save_file(tensors | {full: torch.ones(3, 3)}, path)
    with pytest.raises(ModelError, match=r"has shape \[3, 3\], the configuration needs"):
        loaded(tmp_path)
