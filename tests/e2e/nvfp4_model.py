"""The projections of a model in NVFP4, as a native checkpoint of compressed-tensors."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoint.open import open_checkpoint
from model.checkpoint.stored import Stored
from tests.model.checkpoint.quantized_files import FORMS
from tests.model.fp4 import nearest

FIELDS = (
    *("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "norm_eps", "rope_theta"),
)
"""Fields of params.json that have their names in our configuration."""


def in_nvfp4(source: Path, directory: Path) -> Path:
    """Write a dense model of a GGUF file to `directory`. Embeddings and norms are in bfloat16."""
    opened = open_checkpoint(source)
    config, found = opened.config, {}
    for name, matrix in opened.tensors():
        weight = whole(matrix)
        if weight.dim() == 1 or name == "tok_embeddings.weight":
            found[name] = weight.bfloat16()
            continue
        module = name.removesuffix("weight")
        codes, scales, divisor = nearest(weight)
        found |= {f"{module}weight_packed": codes, f"{module}weight_scale": scales}
        found[f"{module}weight_global_scale"] = torch.tensor([divisor])
    params = {name: getattr(config, name) for name in FIELDS} | {"max_position_embeddings": config.max_position}
    params |= {"tied_embeddings": config.tied_head, "quantization_config": FORMS["native nvfp4"].config}
    (directory / "params.json").write_text(json.dumps(params))
    save_file(found, directory / "consolidated.safetensors")
    return directory


def whole(matrix: Stored) -> Tensor:
    """The matrix in float32."""
    return torch.cat([part.float() for part in matrix.parts()])
