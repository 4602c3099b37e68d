"""Files with the image encoder of a GGUF model: which one is used, and what is refused."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.checkpoint.config import read_config
from model.checkpoint.digest import network_files
from model.checkpoint.gguf.open import open_gguf
from model.checkpoint.gguf.reader import read_gguf
from model.checkpoint.open import open_checkpoint
from model.errors import ModelError
from tests.model import pixtral
from tests.model.checkpoint.gguf_bytes import join
from tests.model.driving import loaded
from tests.model.pixtral import raw

MMPROJ = "mmproj-model-F32.gguf"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pixtral.save_gguf("mistral3", tmp_path_factory.mktemp("gguf")).parent


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of both files."""
    return Path(shutil.copytree(written, tmp_path / "copy"))


def change(path: Path, **fields: Any) -> None:
    """Set fields of the metadata, whose names have "__" for "."; None removes one."""
    file, data = read_gguf(path), path.read_bytes()
    metadata = {**file.metadata, **{name.replace("__", "."): value for name, value in fields.items()}}
    first = min(tensor.offset for tensor in file.tensors)
    known = {name: value for name, value in metadata.items() if value is not None}
    path.write_bytes(join(known, file.tensors, data[first:], first))


def test_one_file_beside_a_model_is_its_encoder(folder: Path) -> None:
    model = folder / "model.gguf"
    config, theirs = read_config(model).vision, pixtral.build("mistral3").config.vision_config
    assert config is not None
    assert (config.n_layers, config.n_heads, config.image_size) == (2, 4, 140)
    assert (config.dim, config.hidden_dim, config.patch_size) == (theirs.hidden_size, theirs.intermediate_size, 14)
    assert (config.merge, config.adapter_norm, config.adapter_bias, config.hidden_act) == (2, True, False, "silu")
    found = tuple(path for path, _ in open_checkpoint(model).files)
    assert network_files(model) == found == (model, folder / MMPROJ)
    assert open_gguf(model).doubts == ()
    (folder / MMPROJ).unlink()
    assert read_config(model).vision is None
    assert network_files(model) == tuple(path for path, _ in open_checkpoint(model).files) == (model,)


@pytest.mark.parametrize("name", ["model-BF16-mmproj.gguf", "MMPROJ.gguf"])
def test_the_word_may_be_anywhere_in_the_name(name: str, folder: Path) -> None:
    (folder / MMPROJ).rename(folder / name)
    assert read_config(folder / "model.gguf").vision is not None


def test_several_that_fit_are_refused(folder: Path) -> None:
    shutil.copy(folder / MMPROJ, folder / "mmproj-model-F16.gguf")
    with pytest.raises(ModelError) as caught:
        open_gguf(folder / "model.gguf")
    assert str(caught.value) == (
        "2 image encoders fit the model (mmproj-model-F16.gguf, mmproj-model-F32.gguf); leave one of them beside it"
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"clip__projector_type": "gemma3"}, "the projector 'gemma3', Noria has 'pixtral'"),
        ({"clip__projector_type": None}, "the projector None, Noria has 'pixtral'"),
        ({"clip__vision__projection_dim": 128}, "embeddings of 128 values, the model has 64"),
    ],
)
def test_one_of_another_model_is_not_used(fields: dict[str, Any], reason: str, folder: Path) -> None:
    shutil.copy(folder / MMPROJ, folder / "mmproj-other.gguf")
    change(folder / "mmproj-other.gguf", **fields)
    model = folder / "model.gguf"
    assert open_gguf(model).doubts == (f"mmproj-other.gguf is not used: it has {reason}",)
    assert read_config(model).vision is not None
    (folder / MMPROJ).unlink()
    assert read_config(model).vision is None
    assert open_gguf(model).doubts == (f"mmproj-other.gguf is not used: it has {reason}",)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clip__vision__block_count": None}, "a whole number of at least 1 in clip.vision.block_count, it has None"),
        ({"clip__vision__attention__layer_norm_epsilon": None}, "above 0 in clip.vision.attention.layer_norm_epsilon"),
        ({"clip__vision__block_count": 0}, "at least 1 in clip.vision.block_count, it has 0"),
        ({"clip__vision__block_count": "two"}, "at least 1 in clip.vision.block_count, it has 'two'"),
        ({"clip__vision__attention__head_count": 5}, "hidden_size / num_attention_heads, 64 / 5, in head_dim"),
        ({"clip__vision__attention__head_count": 0}, "at least 1 in clip.vision.attention.head_count, it has 0"),
        ({"clip__use_silu": False}, "0 of clip.use_silu and clip.use_gelu, expected one"),
        ({"clip__use_gelu": True}, "2 of clip.use_silu and clip.use_gelu, expected one"),
        ({"clip__vision__image_mean": np.float32([0.5] * 3)}, "[0.5, 0.5, 0.5] in clip.vision.image_mean; Noria"),
        ({"clip__vision__image_std": np.float32([0.5])}, "[0.5] in clip.vision.image_std; Noria supports"),
        ({"clip__vision__window_size": 8}, "has the key 'clip.vision.window_size', which Noria does not know"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str, folder: Path) -> None:
    change(folder / MMPROJ, **fields)
    with pytest.raises(ModelError) as caught:
        open_gguf(folder / "model.gguf")
    assert str(caught.value).startswith(MMPROJ)
    assert message in str(caught.value)
    assert str(caught.value).endswith("; move it away to serve text alone")


def test_a_damaged_file_and_a_foreign_tensor_are_named(folder: Path) -> None:
    path = folder / MMPROJ
    whole = path.read_bytes()
    path.write_bytes(whole[:-64])
    with pytest.raises(ModelError, match=f"{MMPROJ} is not a readable GGUF file"):
        open_gguf(folder / "model.gguf")
    path.write_bytes(whole.replace(b"v.blk.0.ln1.weight", b"v.blk.0.ls1.weight"))
    with pytest.raises(ModelError, match=f"{MMPROJ}: the GGUF file has a tensor 'v.blk.0.ls1.weight'"):
        open_gguf(folder / "model.gguf")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"clip__rope__freq_base": 5000.0, "clip__vision__attention__layer_norm_epsilon": 1e-6},
            (5000.0, 1e-6, "silu"),
        ),
        ({"clip__use_silu": False, "clip__use_gelu": True}, (10_000.0, 1e-5, "gelu")),
    ],
)
def test_values_of_the_file_are_read(fields: dict[str, Any], expected: tuple[Any, ...], folder: Path) -> None:
    change(folder / MMPROJ, **fields)
    config = read_config(folder / "model.gguf").vision
    assert config is not None
    assert (config.rope_theta, config.norm_eps, config.hidden_act) == expected


def set_img_break(path: Path, row: np.ndarray) -> None:
    """Write another row over the encoder's copy of the embedding of [IMG_BREAK]."""
    copy = next(tensor for tensor in read_gguf(path).tensors if tensor.name == "v.token_embd.img_break")
    data = bytearray(path.read_bytes())
    data[copy.offset : copy.offset + copy.n_bytes] = row.astype("<f4").tobytes()
    path.write_bytes(data)


@pytest.mark.parametrize("text", ["F32", "Q8_0", "BF16"])
def test_the_encoder_of_another_model_of_the_same_width_is_not_used(text: str, tmp_path: Path) -> None:
    model = pixtral.save_gguf("mistral3", tmp_path, "F32", text)
    assert open_gguf(model).doubts == ()
    assert read_config(model).vision is not None
    shutil.copy(tmp_path / MMPROJ, tmp_path / "mmproj-other.gguf")
    set_img_break(tmp_path / "mmproj-other.gguf", np.random.default_rng(0).standard_normal(64))
    doubt = (
        "mmproj-other.gguf is not used: it has another embedding of [IMG_BREAK] than model.gguf, "
        "so it is for another model"
    )
    assert open_gguf(model).doubts == (doubt,)
    assert read_config(model).vision is not None
    (tmp_path / MMPROJ).unlink()
    assert open_gguf(model).doubts == (doubt,)
    assert read_config(model).vision is None


def test_a_row_of_zeros_decides_nothing(folder: Path) -> None:
    set_img_break(folder / MMPROJ, np.zeros(64))
    assert open_gguf(folder / "model.gguf").doubts == ()
    assert read_config(folder / "model.gguf").vision is not None


def vectors(directory: Path) -> torch.Tensor:
    """The embeddings of an image of 3 x 5 tokens."""
    encoder: Any = loaded(directory).encoder
    pixels = torch.randint(0, 256, (84, 140, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    found: torch.Tensor = encoder(raw(pixels), 3, 5)
    return found


@pytest.mark.parametrize(
    ("kinds", "share"),
    [(("F16", "Q8_0"), 0.003), (("BF16", "F32"), 0.02), (("Q8_0", "F16"), 0.03), (("Q8_0", "Q8_0"), 0.03)],
)
def test_both_files_may_have_any_kind(kinds: Sequence[str], share: float, written: Path, tmp_path: Path) -> None:
    encoder, text = kinds
    model = pixtral.save_gguf("mistral3", tmp_path, encoder, text)
    expected, found = vectors(written / "model.gguf"), vectors(model)
    assert 0 < (found - expected).abs().max() <= share * expected.abs().max()
    opened = open_checkpoint(model)
    assert opened.kind == ("blocks" if text == "Q8_0" else "floats")
    assert opened.own_bits == (8.5 if text == "Q8_0" else None)
