"""Checkpoints of random weights: made on the device while the network reads them, or written to a file."""

import json
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoint.open import Checkpoint
from model.config import ModelConfig
from model.network import weights
from model.network.lora import Adapter, LowRank, Part
from model.sharding.shard import shard_of


def tensors(config: ModelConfig, device: torch.device, skip: Collection[str] = ()) -> Iterator[tuple[str, Tensor]]:
    """Random weights. Magnitudes are those of a network at its initialisation; norms are ones."""
    generator = torch.Generator(device).manual_seed(0)
    deep = (2 * config.n_layers) ** -0.5
    for name, place in weights.places(shard_of(config)):
        tensor = torch.ones(place.shape, dtype=getattr(torch, config.dtype), device=device)
        if len(place.shape) > 1:
            gain = deep if name.endswith(("wo.weight", "w2.weight")) else 1.0
            width = 1 if name == weights.EMBEDDINGS else place.shape[1]
            tensor.normal_(0.0, gain * width**-0.5, generator=generator)
        if name not in skip:
            yield name, tensor


def checkpoint(config: ModelConfig, device: torch.device) -> Checkpoint:
    return Checkpoint(config, "half", partial(tensors, config, device))


def save(config: ModelConfig, device: torch.device, directory: Path) -> None:
    """Write a checkpoint in Mistral's native format; all layers have the same window."""
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "norm_eps", "dtype")
    params = {name: getattr(config, name) for name in names} | {"sliding_window": config.windows[0]}
    if config.n_experts:
        params["moe"] = {"num_experts": config.n_experts, "num_experts_per_tok": config.n_experts_per_token}
    (directory / "params.json").write_text(json.dumps(params))
    found = {name: tensor.cpu() for name, tensor in tensors(config, device)}
    save_file(found, directory / "consolidated.safetensors")


def random_adapter(config: ModelConfig, rank: int, device: torch.device) -> Adapter:
    """An adapter of all projections of all layers, in bfloat16."""
    q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim

    def values(n_out: int, n_in: int, scale: float) -> Tensor:
        return torch.randn(n_out, n_in, device=device, dtype=torch.bfloat16).mul_(scale)

    def product(n_in: int, *outputs: int) -> LowRank:
        places = zip((sum(outputs[:i]) for i in range(len(outputs))), outputs, strict=True)
        parts = [Part(first, i * rank, values(n, rank, 1 / 16)) for i, (first, n) in enumerate(places)]
        return LowRank(values(len(outputs) * rank, n_in, n_in**-0.5), tuple(parts))

    dim, hidden = config.dim, config.hidden_dim
    return Adapter(
        tuple(
            {"wqkv": product(dim, q, kv, kv), "wo": product(q, dim), "w13": product(dim, hidden, hidden)}
            | {"w2": product(hidden, dim)}
            for _ in range(config.n_layers)
        )
    )
