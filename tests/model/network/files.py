"""Checkpoints of tests, from files to a network and back."""

from pathlib import Path

import torch

from model.checkpoint.open import open_checkpoint
from model.network import weights
from model.network.transformer import Transformer
from tests.model.driving import CPU


def load(directory: Path) -> Transformer:
    checkpoint = open_checkpoint(directory)
    with torch.device("meta"):
        model = Transformer(checkpoint.config)
    weights.load(
        model, checkpoint.config, checkpoint.rotation, checkpoint.tensors(), torch.float32, CPU, lambda done: None
    )
    return model
