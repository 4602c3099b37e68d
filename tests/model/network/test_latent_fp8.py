"""Latent attention and experts in fp8: per tensor and in blocks, packed as Hugging Face writes them and native."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.model.attention.attending import make
from tests.model.driving import Driver, loaded
from tests.model.network.latent_models import logprobs, mistral4, native_params, native_tensors
from tests.model.network.oracles import TOKENS

BLOCK = 16
PLAIN = ("embed_tokens", "lm_head", "mlp.gate.", "q_a_proj", "kv_a_proj", "norm")
"""Parts of names of weights that the published files do not quantize."""
HF = {"quant_method": "fp8", "activation_scheme": "static"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [BLOCK, BLOCK]},
        }
    },
}


def scales_of(weight: Tensor, blocks: bool, halves: int) -> Tensor:
    """Scales of a matrix: of blocks, or of the whole, or of each of its two halves.

    The greatest value becomes 192, which fp8 has: rounding again changes nothing.
    """
    if not blocks:
        return weight.unflatten(0, (halves, -1)).abs().amax((1, 2))[:, None] / 192
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    found = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            part = weight[row * BLOCK : (row + 1) * BLOCK, column * BLOCK : (column + 1) * BLOCK]
            found[row, column] = part.abs().max() / 192
    return found


def rounded(weight: Tensor, blocks: bool, halves: int = 1) -> tuple[Tensor, Tensor]:
    """The fp8 values of a matrix, and its scales. The matrix becomes what they mean."""
    scales = scales_of(weight, blocks, halves)
    every = scales
    for axis in range(2):
        size = BLOCK if blocks else weight.shape[axis] // scales.shape[axis]
        every = every.repeat_interleave(size, axis).narrow(axis, 0, weight.shape[axis])
    values = (weight / every).to(torch.float8_e4m3fn)
    weight.copy_(values.float() * every)
    return values, scales


def save_packed(model: Any, directory: Path, blocks: bool) -> None:
    """In Hugging Face's form, with the names of transformers."""
    found: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        if any(part in name for part in PLAIN):
            found[name] = weight
        elif weight.dim() == 3:
            halves = 2 if "gate_up" in name else 1
            parts = [rounded(one, blocks, halves) for one in weight]
            found[name] = torch.stack([values.view(torch.uint8) for values, _ in parts]).view(torch.float8_e4m3fn)
            found[f"{name}_scale_inv"] = torch.stack([scales for _, scales in parts])
            found[f"{name}_activation_scale"] = torch.ones(len(weight))
        else:
            values, scales = rounded(weight, blocks)
            found[name], found[f"{name}_scale_inv"] = values, scales if blocks else scales[0, 0]
    (directory / "config.json").write_text(
        json.dumps(
            json.loads(model.config.to_json_string())
            | {"quantization_config": HF | {"weight_block_size": [BLOCK, BLOCK] if blocks else None}}
            | {"dtype": "bfloat16"}
        )
    )
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, directory / "model.safetensors")


def save_native(model: Any, directory: Path, blocks: bool) -> None:
    """With native names: a scale of each tensor as in Small 4, or blocks as in Large 3."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in PLAIN):
                continue
            for one in weight if weight.dim() == 3 else [weight]:
                rounded(one, blocks, 2 if "gate_up" in name else 1)
    found: dict[str, Tensor] = {}
    plain = ("tok_embeddings", "output", ".gate.", "wq_a", "wkv_a", "norm")
    for name, weight in native_tensors(model).items():
        if any(part in name for part in plain):
            found[name] = weight
            continue
        values, scales = rounded(weight.clone(), blocks)
        role = "weight_scale" if blocks else "qscale_weight"
        found[name] = values
        found[name.removesuffix("weight") + role] = scales if blocks else scales[0, 0]
        if not blocks:
            found[name.removesuffix("weight") + "qscale_act"] = torch.tensor(1.0)
    key, config = (
        ("quantization_config", COMPRESSED)
        if blocks
        else ("quantization", {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"})
    )
    (directory / "params.json").write_text(json.dumps(native_params(model.config, **{key: config})))
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, directory / "consolidated.safetensors")


@pytest.mark.parametrize("save", [save_packed, save_native])
@pytest.mark.parametrize("blocks", [False, True], ids=["tensor", "blocks"])
def test_log_probabilities_are_those_of_the_dequantized_weights(save: Any, blocks: bool, tmp_path: Path) -> None:
    model = mistral4()
    with torch.no_grad():
        save(model, tmp_path, blocks)
    found = Driver(loaded(tmp_path), make("sdpa")).whole(TOKENS).log_softmax(-1)
    torch.testing.assert_close(found, logprobs(model), atol=1e-4, rtol=0)


def test_packed_experts_without_a_scale_for_each_are_damaged(tmp_path: Path) -> None:
    model = mistral4()
    with torch.no_grad():
        save_packed(model, tmp_path, blocks=False)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("down_proj_scale_inv") and "experts.down" in name)
    save_file({**tensors, name: tensors[name][:-1].contiguous()}, path)
    with pytest.raises(Exception, match="expected one matrix of each for every expert"):
        loaded(tmp_path)
