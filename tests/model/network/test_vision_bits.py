"""The bits of an image's embeddings: no number of threads and no division into steps changes them."""

import pytest
import torch
from torch import Tensor

from model.attention.encoder import CompiledEncoderAttention
from model.config.model import VisionConfig
from model.kernels.cpu import native
from model.network import weights
from model.network.transformer import Transformer
from model.network.vision.encoder import ImageEncoder
from model.sharding.shard import shard_of
from tests.model.driving import CPU, random_stored, tiny
from tests.model.pixtral import raw

VISION = VisionConfig(64, 2, 4, 16, 128, patch_size=14, image_size=1540, merge=2, adapter_norm=True)
ROWS, COLUMNS = 12, 11
"""Tokens: 528 patches are 3 tiles, and more keys than the attention adds up at once."""


def encoder(scheme: str) -> ImageEncoder:
    config = tiny(vision=VISION)
    with torch.device("meta"):
        model = Transformer(config)
        model.encoder = ImageEncoder(VISION, config.dim, config.norm_eps, scheme)
    weights.load(model, shard_of(config), "half", random_stored(config), torch.float32, CPU, lambda _: None)
    return model.encoder


def image() -> Tensor:
    source = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (ROWS * 28, COLUMNS * 28, 3), generator=source, dtype=torch.uint8)


@pytest.mark.parametrize("scheme", ["bfloat16", "int8"])
@pytest.mark.parametrize("variant", native.available())
@torch.inference_mode()
def test_threads_and_steps_do_not_change_bits(variant: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORIA_KERNELS", variant)
    ours, pixels = encoder(scheme), image()
    before = native.use_threads(1)
    try:
        whole = ours(raw(pixels), ROWS, COLUMNS)
        assert whole.isfinite().all()
        for n_threads, step in ((2, 528), (3, 60)):
            assert native.use_threads(n_threads) == n_threads
            encoding = ours.begin(raw(pixels), ROWS, COLUMNS)
            assert isinstance(encoding.attention, CompiledEncoderAttention)
            for stop in range(step, encoding.n_patches + step, step):
                ours.advance(encoding, min(stop, encoding.n_patches))
            assert torch.equal(encoding.embeddings, whole)
    finally:
        native.use_threads(before)


@pytest.mark.parametrize("scheme", ["bfloat16", "int8"])
@torch.inference_mode()
def test_other_images_between_the_steps_do_not_change_bits(scheme: str) -> None:
    ours, pixels = encoder(scheme), image()
    expected = [ours(raw(pixels), ROWS, COLUMNS), ours(raw(pixels.flip(0)), ROWS, COLUMNS)]
    both = [ours.begin(raw(pixels), ROWS, COLUMNS), ours.begin(raw(pixels.flip(0)), ROWS, COLUMNS)]
    for stop in (100, 300, 528):
        for encoding in both:
            ours.advance(encoding, stop)
    for encoding, wanted in zip(both, expected, strict=True):
        assert torch.equal(encoding.embeddings, wanted)
    assert not torch.equal(*expected)
