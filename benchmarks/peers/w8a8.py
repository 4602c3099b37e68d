"""Writes a checkpoint with int8 weights and activations for vLLM, whose Python runs this file.

DIR/vllm/bin/python -m benchmarks.peers.w8a8 DIR/models/smollm2-hf DIR/models/smollm2-w8a8

The first is a Hugging Face folder with one safetensors file. The second has the format "int-quantized" of
compressed-tensors: a scale a row of each projection of the layers, and a scale a token for activations, found while it
runs. Embeddings and head stay as they are.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

MOST = 127
WEIGHTS = "model.safetensors"


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers [n_out, n_in], and scales [n_out, 1] by which they are multiplied."""
    scale = (weight.float().abs().amax(dim=1, keepdim=True) / MOST).clamp(min=torch.finfo(torch.float32).tiny)
    return (weight.float() / scale).round().to(torch.int8), scale


def description() -> dict[str, Any]:
    """The entry "quantization_config" of config.json."""
    common = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": common | {"strategy": "channel", "dynamic": False},
        "input_activations": common | {"strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def write(source: Path, target: Path) -> None:
    """Write `target`, with the tokenizer and the configuration of `source`."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(WEIGHTS))
    tensors = {}
    for name, tensor in load_file(source / WEIGHTS).items():
        if name.endswith("_proj.weight"):
            tensors[name], tensors[f"{name}_scale"] = quantize(tensor)
        else:
            tensors[name] = tensor
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text()) | {"quantization_config": description()}
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
