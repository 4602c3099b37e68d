"""A checkpoint that is not there: random weights, made on the device as the network takes them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from model import weights
from model.checkpoint.open import Checkpoint
from model.config import ModelConfig
from model.memory import BLOCK_BITS


@dataclass(frozen=True, slots=True)
class RandomWeights:
    """Magnitudes are those of a network at its initialisation, so activations stay finite; norms are ones."""

    config: ModelConfig
    device: torch.device
    seed: int = 0
    quantized: bool = False
    block_bits: float = BLOCK_BITS["Q4_1"]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        generator = torch.Generator(self.device).manual_seed(self.seed)
        deep = (2 * self.config.n_layers) ** -0.5
        dtype = getattr(torch, self.config.dtype)
        for name, place in weights.places(self.config):
            tensor = torch.ones(place.shape, dtype=dtype, device=self.device)
            if len(place.shape) > 1:
                gain = deep if name.endswith(("wo.weight", "w2.weight")) else 1.0
                width = 1 if name == weights.EMBEDDINGS else place.shape[1]
                tensor.normal_(0.0, gain * width**-0.5, generator=generator)
            yield name, tensor


def checkpoint(config: ModelConfig, device: torch.device) -> Checkpoint:
    return Checkpoint(config, "half", RandomWeights(config, device))
