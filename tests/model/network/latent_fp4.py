"""Models with latent attention whose experts are in NVFP4, as native files of compressed-tensors."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.model.checkpoint.quantized_files import FORMS
from tests.model.fp4 import meant, nearest
from tests.model.network.latent_models import native_params, native_tensors

IGNORED = ["model.embed_tokens", "re:.*self_attn.*", "re:.*attention.*", "re:.*gate$", "lm_head"]
CONFIG = FORMS["ct nvfp4"].config | {"ignore": IGNORED}


def parts_of(weight: Tensor, kind: torch.dtype) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a weight, and what they mean; `kind` is that of a scale of activations."""
    codes, scales, divisor = nearest(weight)
    parts = {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": torch.tensor([divisor])}
    wanted = torch.from_numpy(meant(codes, scales.view(torch.uint8), 1 / parts["weight_global_scale"].item()))
    return parts | {"input_global_scale": torch.ones(1, dtype=kind)}, wanted.float()


def round_experts(model: Any) -> None:
    """Give each matrix of a feed-forward the weights that its parts mean. Packed again, it has the same parts."""
    for name, parameter in model.named_parameters():
        if ".mlp." in name and "mlp.gate." not in name:
            for one in parameter if parameter.dim() == 3 else [parameter]:
                for matrix in one.chunk(2 if "gate_up" in name else 1):
                    matrix.copy_(parts_of(matrix, torch.float32)[1])


def stored(model: Any) -> dict[str, Tensor]:
    """The tensors of a native file. The shared expert's scale of activations has another type."""
    found: dict[str, Tensor] = {}
    for name, weight in native_tensors(model).items():
        if not re.search(r"\.w[123]\.", name):
            found[name] = weight.bfloat16()
            continue
        parts, wanted = parts_of(weight, torch.bfloat16 if "shared" in name else torch.float32)
        torch.testing.assert_close(weight, wanted)
        found |= {name.removesuffix("weight") + role: part for role, part in parts.items()}
    return found


def save_native(model: Any, directory: Path) -> Path:
    """Write a model whose weights `round_experts` has rounded."""
    (directory / "params.json").write_text(json.dumps(native_params(model.config, quantization_config=CONFIG)))
    save_file(stored(model), directory / "consolidated.safetensors")
    return directory
