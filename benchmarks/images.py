"""Random image encoders and drawn images, for the benchmarks of images."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from benchmarks.gpu.shapes import TOWER
from model.config import ModelConfig
from model.network import weights
from model.network.transformer import Transformer
from model.network.vision.encoder import ImageEncoder
from model.sharding.shard import shard_of

TEXT_DIM = 5120


@dataclass(frozen=True, slots=True)
class RandomEncoder:
    """Weights of an image encoder, random with the magnitudes of a network at its initialisation.

    With `outliers` above 1, the norms are log-normal with a deviation of 0.5, and 4 channels of each are as many times
    larger: trained networks have such channels.
    """

    dim: int = TEXT_DIM
    outliers: float = 1.0
    seed: int = 0

    @property
    def config(self) -> ModelConfig:
        """A text model of one small layer, with the image encoder."""
        sizes = {"dim": self.dim, "n_layers": 1, "n_heads": 1, "n_kv_heads": 1, "head_dim": 2, "hidden_dim": 2}
        rest = {"vocab_size": 1, "norm_eps": 1e-5, "rope_theta": 1e4, "max_position": 1, "windows": (None,)}
        return ModelConfig(family="mistral", **sizes, **rest, dtype="float32", vision=TOWER)  # type: ignore[arg-type]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        source = torch.Generator().manual_seed(self.seed)
        deep = (2 * TOWER.n_layers) ** -0.5
        for name, place in weights.places(shard_of(self.config)):
            if len(place.shape) == 1:
                yield name, self._norm(place.shape[0], source)
                continue
            gain = deep if name.endswith(("wo.weight", "w2.weight")) else 1.0
            yield name, torch.randn(place.shape, generator=source) * (gain * prod(place.shape[1:]) ** -0.5)

    def _norm(self, dim: int, source: torch.Generator) -> Tensor:
        norm = torch.ones(dim)
        if self.outliers > 1:
            norm = torch.randn(dim, generator=source).mul_(0.5).exp_()
            norm[torch.randperm(dim, generator=source)[:4]] *= self.outliers
        return norm

    def load(self, scheme: str) -> ImageEncoder:
        """The encoder with its projections in a scheme, on the CPU. The text model is given up."""
        with torch.device("meta"):
            model = Transformer(self.config)
            model.vision = ImageEncoder(TOWER, self.dim, self.config.norm_eps, scheme)
        device = torch.device("cpu")
        weights.load(model, shard_of(self.config), "half", self.tensors(), torch.float32, device, lambda _: None)
        return model.vision.eval()


def gradient(side: int) -> Image.Image:
    """Red grows to the right, green downwards, blue to the left."""
    y, x = np.mgrid[0:side, 0:side] / side
    return _image(np.stack((x, y, 1 - x), axis=-1))


def text(side: int) -> Image.Image:
    """Lines of black text in four sizes."""
    image = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(image)
    for number, size in enumerate((12, 16, 24, 40)):
        for line in range(side // 4 // (size + 4)):
            place = (8, number * side // 4 + line * (size + 4))
            draw.text(place, "Invoice 77-Q: 1,284.50 EUR, due 24 March. " * 4, "black", ImageFont.load_default(size))
    return image


def photo(side: int) -> Image.Image:
    """Coloured noise with the spectrum of photographs (amplitude 1/f), and blurred shapes on it."""
    source = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    frequency[0, 0] = 1
    waves = source.normal(size=(3, *frequency.shape)) + 1j * source.normal(size=(3, *frequency.shape))
    noise = np.fft.irfft2(waves / frequency, (side, side)).transpose(1, 2, 0)
    grey = noise[..., :1] + 0.4 * noise[..., 1:2] * [1, 0, -1] + 0.2 * noise[..., 2:] * [1, -2, 1]
    image = _image(0.45 + 0.22 * (grey - grey.mean()) / grey.std())
    draw = ImageDraw.Draw(image)
    for number in range(12):
        x, y, width, height = (int(value) for value in source.integers(8, side, 4))
        colour = tuple(int(value) for value in source.integers(0, 256, 3))
        box = (x, y, x + width // 4, y + height // 4)
        draw.ellipse(box, colour) if number % 2 else draw.rectangle(box, colour)
    return image.filter(ImageFilter.GaussianBlur(1))


IMAGES: Mapping[str, Callable[[int], Image.Image]] = {"gradient": gradient, "text": text, "photo": photo}


def _image(values: NDArray[np.floating]) -> Image.Image:
    return Image.fromarray((values.clip(0, 1) * 255).astype(np.uint8))


def pixels(image: Image.Image) -> tuple[Tensor, int]:
    """Pixels [H, W, 3] of a square image whose side is made a whole number of tokens, and this number."""
    columns = -(-image.width // TOWER.token_side)
    side = columns * TOWER.token_side
    return torch.from_numpy(np.array(image.resize((side, side), Image.Resampling.BICUBIC))), columns
