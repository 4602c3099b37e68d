"""The image encoder in configurations and names of weights: what is read, what is refused, and what has none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint.config import read_config
from model.checkpoint.names import canonical_name, is_encoder
from model.config.vision import VisionConfig
from model.errors import ModelError
from tests.model import pixtral
from tests.model.checkpoint.published import ROWS
from tests.model.driving import loaded

PIXTRAL = VisionConfig(1024, 24, 16, 64, 4096, 16, 1024, adapter_bias=True)
SMALL = VisionConfig(1024, 24, 16, 64, 4096, 14, 1540, merge=2, adapter_norm=True)


def row(name: str) -> dict[str, Any]:
    return {**ROWS[name].config}


def read(directory: Path, config: dict[str, Any], file: str = "config.json") -> VisionConfig | None:
    (directory / file).write_text(json.dumps(config))
    return read_config(directory).vision


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Pixtral 12B", PIXTRAL),
        ("Pixtral 12B, native", PIXTRAL),
        ("Small 3.2, Devstral, Magistral", SMALL),
        ("Ministral 3 8B", SMALL),
        ("Ministral 3 3B, native", SMALL),
        ("Nemo 12B", None),
    ],
)
def test_published_encoders(name: str, expected: VisionConfig | None, tmp_path: Path) -> None:
    assert read(tmp_path, row(name), ROWS[name].file) == expected


def test_rope_parameters_of_transformers_5(tmp_path: Path) -> None:
    config = row("Pixtral 12B")
    config["vision_config"] = {
        **config["vision_config"],
        "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0},
    }
    found = read(tmp_path, config)
    assert found is not None
    assert found.rope_theta == 500.0


INNER = [
    (
        {"model_type": "clip_vision_model"},
        "vision_config in config.json has model_type 'clip_vision_model'; Noria .*",
    ),
    ({"hidden_act": "relu"}, "hidden_act of the image encoder must be silu or gelu, it is 'relu'"),
    ({"attention_bias": True}, "has attention_bias True; Noria supports False"),
    ({"head_dim": 32}, "hidden_size / num_attention_heads, 1024 / 16, in head_dim; it has 32"),
    (
        {"num_attention_heads": 512, "head_dim": 2},
        "head_dim of the image encoder must be a multiple of 4 .*, it is 2",
    ),
    (
        {"hidden_size": "1024"},
        "vision_config in config.json must have a whole number of .* in hidden_size, it has '1024'",
    ),
    ({"patch_size": 2000}, "image_size of the image encoder must be 2000 .* to 2048000, it is 1024"),
    ({"rope_theta": 0.5}, "rope_theta of the image encoder must be a number above 1, it is 0.5"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn'; Noria supports 'axial'"),
]
NATIVE = [
    (
        {"some": 1},
        r"vision_encoder in params.json has 'some' \(1\), which Noria does not know; it knows adapter_bias",
    ),
    ({"mm_projector_id": "mlp"}, "mm_projector_id 'mlp'; Noria supports 'patch_merge'"),
    ({"mm_projector_id": None}, "spatial_merge_size 2 and mm_projector_id None; a size of 2 and more belongs to"),
    ({"adapter_bias": "no"}, "vision_encoder in params.json has adapter_bias 'no'; it must be true or false"),
]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        *(("Pixtral 12B", {"vision_config": changes}, message) for changes, message in INNER),
        *(("Ministral 3 3B, native", {"vision_encoder": changes}, message) for changes, message in NATIVE),
        ("Pixtral 12B", {"vision_feature_layer": -2}, "vision_feature_layer -2; Noria supports -1"),
        (
            "Pixtral 12B",
            {"vision_feature_select_strategy": "default"},
            "vision_feature_select_strategy 'default'; Noria supports 'full'",
        ),
        ("Pixtral 12B", {"vision_config": 3}, "must have an object in vision_config, it has 3"),
        ("Ministral 3 8B", {"spatial_merge_size": 1}, "spatial_merge_size 1; Noria supports 2 and more"),
        (
            "Ministral 3 8B",
            {"spatial_merge_size": 200},
            r"must be 2800 \(patch_size 14 x merge 200\) to .*, it is 1540",
        ),
    ],
    ids=str,
)
def test_encoders_that_are_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = row(name)
    fields = {key: {**config[key], **value} if isinstance(value, dict) else value for key, value in changes.items()}
    with pytest.raises(ModelError, match=message) as caught:
        read(tmp_path, config | fields, ROWS[name].file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["hf", "native"])
@pytest.mark.parametrize("kind", pixtral.KINDS)
def test_without_its_weights_a_model_serves_text(kind: str, form: str, tmp_path: Path) -> None:
    """As in a conversion that keeps the whole configuration. Before there are files, the configuration decides."""
    (pixtral.save_hf if form == "hf" else pixtral.save_native)(kind, tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    assert read_config(tmp_path).vision is not None
    tensors = {name: tensor for name, tensor in load_file(path).items() if not is_encoder(name)}
    save_file(tensors, path)
    assert read_config(tmp_path).vision is None
    assert loaded(tmp_path).encoder is None
    path.unlink()
    assert read_config(tmp_path).vision is not None


@pytest.mark.parametrize("name", ["vision_tower.ln_pre.weight", "multi_modal_projector.linear_2.weight"])
def test_a_part_of_an_encoder_is_named(name: str, tmp_path: Path) -> None:
    path = pixtral.save_hf("mistral3", tmp_path) / "model.safetensors"
    tensors = load_file(path)
    save_file({other: tensor for other, tensor in tensors.items() if other != name}, path)
    with pytest.raises(ModelError, match=f"the checkpoint has no tensor '{canonical_name(name)}'$"):
        loaded(tmp_path)
    save_file(tensors | {name: torch.ones(3, 3)}, path)
    with pytest.raises(ModelError, match=r"has shape \[3, 3\], the configuration needs \[64"):
        loaded(tmp_path)


def test_no_other_weight_is_of_images() -> None:
    """`test_vision.py` and `test_dense_oracles.py` read all that are."""
    assert canonical_name("vision_tower.patch_positional_embedding.inv_freq") is None
    for name in ("layers.0.attention.wq.weight", "model.norm.weight", "vision.weight", "model.vision_towers.a.weight"):
        assert not is_encoder(name)
    for name in (
        "vision_tower.vision_model.pre_layernorm.weight",
        "vision_tower.transformer.layers.0.attention.q_proj.bias",
    ):
        with pytest.raises(ModelError, match="which no supported model family has"):
            canonical_name(name)
