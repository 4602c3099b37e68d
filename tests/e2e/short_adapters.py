"""Random PEFT adapters for the first layers of the embedded model."""

from pathlib import Path
from typing import Any

import torch

from tests.model.checkpoint.adapter_files import save_peft

DIM, HIDDEN, KEYS, VOCAB, LAYERS = 576, 1536, 192, 49152, 4
SHAPES = {
    "self_attn.q_proj": (DIM, DIM),
    "self_attn.k_proj": (KEYS, DIM),
    "self_attn.v_proj": (KEYS, DIM),
    "self_attn.o_proj": (DIM, DIM),
    "mlp.gate_proj": (HIDDEN, DIM),
    "mlp.up_proj": (HIDDEN, DIM),
    "mlp.down_proj": (DIM, HIDDEN),
}


def save_short(directory: Path, **about: Any) -> None:
    """Save one; `about` are the arguments of `save_peft`."""
    weights = {"lm_head.weight": torch.empty(VOCAB, DIM)}
    for layer in range(LAYERS):
        weights |= {f"model.layers.{layer}.{name}.weight": torch.empty(shape) for name, shape in SHAPES.items()}
    save_peft(directory, weights, lora_alpha=4, **about)
