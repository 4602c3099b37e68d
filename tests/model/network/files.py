"""Checkpoints of tests, from files to a network and back."""

from pathlib import Path

import torch
from torch import Tensor

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


def half_to_adjacent(rows: Tensor, head_dim: int) -> Tensor:
    """The order of q and k rows in a native file, from that of an HF file."""
    return torch.cat(
        [head.view(2, head_dim // 2, -1).transpose(0, 1).reshape(head_dim, -1) for head in rows.split(head_dim)]
    )
