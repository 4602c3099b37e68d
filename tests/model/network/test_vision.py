"""The image encoder, alone and before the text model, against transformers; and the pieces of its work."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlavaConfig, LlavaForConditionalGeneration
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from model.network import encoding as pieces
from model.network.transformer import Transformer
from model.network.vision.encoder import ImageEncoder
from tests.model import latent_pixtral, pixtral
from tests.model.checkpoint import quantized_files
from tests.model.driving import MediaDriver, loaded
from tests.model.pixtral import IMG, IMG_BREAK, IMG_END, raw

Saved = Callable[[str, str], Path]
SIZES = ((1, 2), (4, 1), (3, 5))
"""Rows and columns of tokens. transformers cannot embed an image of one token."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A kind in a form: "hf" and "native" are directories, "gguf" is a file."""

    @cache
    def made(kind: str, form: str) -> Path:
        write = {"hf": pixtral.save_hf, "native": pixtral.save_native, "gguf": pixtral.save_gguf}[form]
        return write(kind, tmp_path_factory.mktemp(form))

    return made


def network(directory: Path, scheme: str = "none") -> Transformer:
    model = loaded(directory, scheme)
    assert model.encoder is not None
    return model


def vision(directory: Path, scheme: str = "none") -> ImageEncoder:
    return network(directory, scheme).encoder  # type: ignore[return-value]


def image(rows: int, columns: int, side: int, seed: int = 0) -> Tensor:
    """Random pixels [H, W, 3] of `rows` x `columns` tokens, whose side has `side` pixels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows * side, columns * side, 3), generator=generator, dtype=torch.uint8)


def pixel_values(images: Sequence[Tensor], patch: int) -> Tensor:
    """The images as transformers prepares them, padded to one size [n, 3, H, W]."""
    processor = PixtralImageProcessorPil(size={"longest_edge": 1024}, patch_size={"height": patch, "width": patch})
    values: Tensor = processor([Image.fromarray(pixels.numpy()) for pixels in images], return_tensors="pt").pixel_values
    return values


def sizes(images: Sequence[Tensor]) -> list[tuple[int, int]]:
    return [(pixels.shape[0], pixels.shape[1]) for pixels in images]


def close(found: Tensor, expected: Tensor, share: float) -> None:
    """Within a share of the greatest magnitude."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= share * expected.abs().max()


def features(kind: str, images: Sequence[Tensor], patch: int) -> Sequence[Tensor]:
    """transformers' embeddings [tokens, dim] of each image."""
    model, more = pixtral.build(kind), {"vision_feature_select_strategy": "full"} if kind == "llava" else {}
    values = pixel_values(images, patch)
    with torch.no_grad():
        found = model.model.get_image_features(values, image_sizes=sizes(images), vision_feature_layer=-1, **more)
    parts: Sequence[Tensor] = found.pooler_output
    return parts


@pytest.mark.parametrize("kind", pixtral.KINDS)
def test_embeddings_are_those_of_transformers(kind: str, saved: Saved) -> None:
    ours = vision(saved(kind, "hf"))
    images = [image(*size, ours.config.token_side, seed) for seed, size in enumerate(SIZES)]
    for pixels, size, expected in zip(images, SIZES, features(kind, images, ours.config.patch_size), strict=True):
        close(ours(raw(pixels), *size), expected, 1e-5)


@pytest.mark.parametrize("declared", [{"hidden_act": "gelu"}, {}], ids=str)
def test_an_encoder_with_gelu(declared: dict[str, str], saved: Saved, tmp_path: Path) -> None:
    """Its hidden states are those of transformers, which takes gelu where no activation is named."""
    directory = shutil.copytree(saved("llava", "hf"), tmp_path / "gelu")
    config = json.loads((directory / "config.json").read_text())
    del config["vision_config"]["hidden_act"]
    config["vision_config"] |= declared
    (directory / "config.json").write_text(json.dumps(config))
    theirs = LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).model.vision_tower
    pixels = image(3, 5, 16)
    with torch.no_grad():
        expected = theirs(pixel_values([pixels], 16), image_sizes=sizes([pixels])).last_hidden_state[0]
    for scheme, share in (("none", 1e-5), ("bfloat16", 0.03)):
        encoding = (ours := vision(directory, scheme)).begin(raw(pixels), 3, 5)
        ours.advance(encoding, encoding.n_patches)
        close(encoding.x, expected, share)


@pytest.mark.parametrize("head_dim", [88, 104])
def test_heads_of_other_sizes(head_dim: int, tmp_path: Path) -> None:
    """104 as in Mistral Large 3, and another one that is no power of two.

    With smaller weights than other models here: wide heads would make attention a choice that bfloat16 tips over.
    """
    config = LlavaConfig(
        text_config={**pixtral.TEXT},
        vision_config={**pixtral.VISION, "hidden_size": 2 * head_dim, "num_attention_heads": 2, "head_dim": head_dim}
        | {"patch_size": 16, "image_size": 128, "initializer_range": 0.1},
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    torch.manual_seed(0)
    original = LlavaForConditionalGeneration(config).eval()
    original.save_pretrained(tmp_path)
    pixels = image(3, 5, 16)
    with torch.no_grad():
        theirs = original.model.vision_tower(pixel_values([pixels], 16), image_sizes=sizes([pixels]))
    for scheme, share in (("none", 1e-5), ("bfloat16", 0.03)):
        encoding = (ours := vision(tmp_path, scheme)).begin(raw(pixels), 3, 5)
        ours.advance(encoding, encoding.n_patches)
        close(encoding.x, theirs.last_hidden_state[0], share)


@pytest.mark.parametrize("form", ["native", "gguf"])
@pytest.mark.parametrize("kind", pixtral.KINDS)
def test_all_forms_have_the_same_bits(kind: str, form: str, saved: Saved) -> None:
    one, other = network(saved(kind, "hf")), network(saved(kind, form))
    assert one.config.vision == other.config.vision
    assert one.n_parameters == one.config.n_parameters == pixtral.build(kind).num_parameters()
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


SCHEMES = ("none", "int8", "int4", "bfloat16")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", pixtral.KINDS)
def test_pieces_have_the_bits_of_the_whole(
    kind: str, scheme: str, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of 7 patches; the work is divided at every patch, unevenly, and with a step that is repeated."""
    monkeypatch.setattr(pieces, "TILE", 7)
    ours = vision(saved(kind, "native"), scheme)
    pixels = image(3, 5, ours.config.token_side)
    whole = ours(raw(pixels), 3, 5)
    n = len(pixels) * pixels.shape[1] // ours.config.patch_size**2
    for stops in (range(1, n + 1), (n // 3, n // 3, n // 2, n, n)):
        encoding = ours.begin(raw(pixels), 3, 5)
        for stop in stops:
            assert not encoding.complete or stop == n
            ours.advance(encoding, stop)
        assert encoding.complete
        assert encoding.embeddings.equal(whole)


def test_work_is_shared_out_by_its_cost(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 patches in tiles of 16 are 4 units for the patches, 8 in each of 2 layers, and 1 for 15 tokens.

    The 4 cost 588 * 64 = 37,632 multiplications a patch. In a layer 4 cost 3 * 64 * 64 = 12,288, and 4 cost
    64 * 64 + 3 * 64 * 96 + 2 * 60 * 64 = 30,208. The last costs 4 * 64 * 64 + 2 * 64 * 64 = 24,576; all cost 515,072.
    20 of 60 patches pay 171,691: the first 4 units, then a fifth at 150,528 and a sixth at 162,816.
    """
    monkeypatch.setattr(pieces, "TILE", 16)
    ours = vision(saved("mistral3", "hf"))
    encoding = ours.begin(raw(image(3, 5, 28)), 3, 5)
    assert (encoding.n_patches, encoding.n_units) == (60, 4 + 2 * 8 + 1)
    done = []
    for stop in (0, 1, 20, 59, 60):
        ours.advance(encoding, stop)
        done.append(encoding.done)
    assert done == [0, 1, 6, 21, 21]
    assert encoding.costs[6] == 150_528 + 2 * 12_288
    assert encoding.costs[-1] == 515_072


def test_a_unit_that_raises_is_computed_again(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, pixels = vision(saved("mistral3", "hf")), image(2, 2, 28)
    whole = ours(raw(pixels), 2, 2)
    block: Any = ours.layers[1]
    feed_forward = block.feed_forward.forward

    def fail(*args: Any, **options: Any) -> Tensor:
        monkeypatch.setattr(block.feed_forward, "forward", feed_forward)
        raise MemoryError

    monkeypatch.setattr(block.feed_forward, "forward", fail)
    encoding = ours.begin(raw(pixels), 2, 2)
    with pytest.raises(MemoryError):
        ours.advance(encoding, 16)
    ours.advance(encoding, 16)
    assert encoding.embeddings.equal(whole)


@pytest.mark.parametrize("scheme", SCHEMES[1:])
def test_quantized_encoders_are_near(scheme: str, saved: Saved) -> None:
    """The weights are rounded, and the patches with them; embeddings of different images are nearly orthogonal."""
    directory = saved("mistral3", "hf")
    pixels = image(3, 5, 28)
    expected = vision(directory)(raw(pixels), 3, 5)
    likeness = torch.cosine_similarity(vision(directory, scheme)(raw(pixels), 3, 5), expected, dim=1)
    assert likeness.min() > 0.98


def test_pixels_of_another_size_are_refused(saved: Saved) -> None:
    ours = vision(saved("mistral3", "hf"))
    with pytest.raises(ValueError, match=r"2 x 3 tokens needs pixels \[56, 84, 3\], got 21168 bytes"):
        ours.begin(raw(image(3, 3, 28)), 2, 3)


def prompt(images: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Text, then each image and more text."""
    yield from (1, 3, 40, 41, 42)
    for rows, columns in images:
        for row in range(rows):
            yield from (IMG,) * columns
            yield IMG_BREAK if row < rows - 1 else IMG_END
        yield from (50, 51, 52, 53)
    yield 4


@pytest.mark.parametrize("chunk", [1000, 7])
@pytest.mark.parametrize("form", ["hf", "native", "gguf"])
@pytest.mark.parametrize("kind", pixtral.KINDS)
def test_log_probabilities_with_images_are_those_of_transformers(
    kind: str, form: str, chunk: int, saved: Saved
) -> None:
    agree(network(saved(kind, form)), pixtral.build(kind), chunk)


@pytest.mark.parametrize("form", ["hf", "native", "gguf"])
def test_log_probabilities_with_images_and_latent_attention(form: str, tmp_path: Path) -> None:
    write = {"hf": latent_pixtral.save_hf, "native": latent_pixtral.save_native, "gguf": latent_pixtral.save_gguf}
    model = network(write[form](tmp_path))
    assert model.config.latent is not None
    for chunk in (1000, 7):
        agree(model, latent_pixtral.build(), chunk)


def agree(model: Transformer, theirs: Any, chunk: int) -> None:
    """For a prompt with two images, in chunks."""
    assert model.encoder is not None
    grids, config = ((2, 3), (4, 1)), model.encoder.config
    images = [image(*grid, config.token_side, seed) for seed, grid in enumerate(grids)]
    tokens = list(prompt(grids))
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor([tokens]),
            pixel_values=pixel_values(images, config.patch_size),
            image_sizes=torch.tensor(sizes(images)),
        ).logits[0]
    embeddings = torch.cat([model.encoder(raw(pixels), *grid) for pixels, grid in zip(images, grids, strict=True)])
    found = MediaDriver(model, IMG, embeddings).log_probabilities(tokens, chunk)
    torch.testing.assert_close(found, expected.log_softmax(-1), atol=1e-4, rtol=0)
    other = MediaDriver(model, IMG, embeddings.flip(0)).log_probabilities(tokens, chunk)
    assert (other - found).abs().max() > 0.1  # images matter


@pytest.mark.parametrize("name", ["ct int4 g32", "gptq g128", "fp8 tensor", "ct int8 channel"])
def test_a_quantized_text_model_has_an_encoder_that_is_not(name: str, tmp_path: Path) -> None:
    quantized_files.save(name, tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    config = LlavaConfig(
        text_config={"model_type": "mistral", **quantized_files.SIZES},
        vision_config={**pixtral.VISION, "patch_size": 16, "image_size": 64},
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    theirs = LlavaForConditionalGeneration(config).eval().model
    tensors = load_file(tmp_path / "model.safetensors")
    images = {name: tensor for name, tensor in theirs.state_dict().items() if not name.startswith("language_model")}
    save_file({**tensors, **images}, tmp_path / "model.safetensors")
    outer = {"text_config": text, "quantization_config": text.pop("quantization_config")}
    (tmp_path / "config.json").write_text(json.dumps(json.loads(config.to_json_string()) | outer))
    pixels = image(2, 3, 16)
    with torch.no_grad():
        (expected,) = theirs.get_image_features(
            pixel_values([pixels], 16), image_sizes=sizes([pixels]), vision_feature_layer=-1
        ).pooler_output
    close(vision(tmp_path)(raw(pixels), 2, 3), expected, 1e-5)
    likeness = torch.cosine_similarity(vision(tmp_path, "int8")(raw(pixels), 2, 3), expected, dim=1)
    assert likeness.min() > 0.98
