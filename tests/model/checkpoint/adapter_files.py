"""Adapters for tests, written as PEFT and mistral-finetune write them, and what they add to the weights of a base.

The names are those of published adapters. Nothing here uses our reading.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.model.checkpoint.native_files import half_to_adjacent, native_name

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj", "lm_head")
CONFIG: Mapping[str, Any] = {
    "alpha_pattern": {},
    "auto_mapping": None,
    "base_model_name_or_path": "mistralai/Mistral-7B-v0.3",
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layer_replication": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "qalora_group_size": 16,
    "r": 8,
    "rank_pattern": {},
    "revision": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_dora": False,
    "use_rslora": False,
}
"""adapter_config.json without target_modules."""


def save_peft(
    directory: Path,
    weights: Mapping[str, Tensor],
    targets: Sequence[str] = ALL,
    *,
    ranks: Callable[[str], int] | None = None,
    scale: Callable[[str, int], float] | None = None,
    seed: int = 0,
    **config: Any,
) -> dict[str, Tensor]:
    """Write a random adapter for the base's `weights`, under Hugging Face's names; return what it adds to each.

    `ranks` gives the rank of a module and `scale` its factor, by default r and alpha / r of `config`.
    """
    config = {**CONFIG, "target_modules": list(targets), **config}
    generator = torch.Generator().manual_seed(seed)
    tensors, changes = {}, {}
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] not in targets:
            continue
        r = ranks(module) if ranks else config["r"]
        a = torch.randn(r, weight.shape[1], generator=generator) * 0.5
        b = torch.randn(weight.shape[0], r, generator=generator) * 0.05
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
        changes[name] = (scale(module, r) if scale else config["lora_alpha"] / r) * (b @ a)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "adapter_model.safetensors")
    return changes


def save_native(peft: Path, directory: Path, head_dim: int, factor: float, params: Any = None) -> Path:
    """Write PEFT's adapter again as mistral-finetune writes its own; `factor` is PEFT's, over that of the new file."""
    tensors = {}
    for name, tensor in load_file(peft / "adapter_model.safetensors").items():
        module, side = name.removeprefix("base_model.model.").rsplit(".lora_", 1)
        known = native_name(f"{module}.weight").removesuffix(".weight")
        if side == "B.weight":
            tensor = tensor * factor
            tensor = half_to_adjacent(tensor, head_dim) if known.endswith((".wq", ".wk")) else tensor
        tensors[f"{known}.lora_{side}"] = tensor.contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "lora.safetensors")
    if params is not None:
        (directory / "params.json").write_text(json.dumps(params))
    return directory
