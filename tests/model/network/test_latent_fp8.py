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

PLAIN = ("embed_tokens", "lm_head", "mlp.gate.", "q_a_proj", "kv_a_proj", "norm")
"""Parts of names of weights that the published files do not quantize."""
HF = {"quant_method": "fp8", "activation_scheme": "static"}


def compressed(block: int) -> dict[str, Any]:
    """What compressed-tensors says of blocks of this many rows and columns."""
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [block, block]}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}


def scales_of(weight: Tensor, block: int, halves: int) -> Tensor:
    """Scales of a matrix: of blocks, unless `block` is 0, or of the whole, or of each of its two halves.

    The greatest value becomes 192, which fp8 has: rounding again changes nothing.
    """
    if not block:
        return weight.unflatten(0, (halves, -1)).abs().amax((1, 2))[:, None] / 192
    rows, columns = (-(-size // block) for size in weight.shape)
    found = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            part = weight[row * block : (row + 1) * block, column * block : (column + 1) * block]
            found[row, column] = part.abs().max() / 192
    return found


def rounded(weight: Tensor, block: int, halves: int = 1) -> tuple[Tensor, Tensor]:
    """The fp8 values of a matrix, and its scales. The matrix becomes what they mean."""
    scales = scales_of(weight, block, halves)
    every = scales
    for axis in range(2):
        size = block or weight.shape[axis] // scales.shape[axis]
        every = every.repeat_interleave(size, axis).narrow(axis, 0, weight.shape[axis])
    values = (weight / every).to(torch.float8_e4m3fn)
    weight.copy_(values.float() * every)
    return values, scales


def save_packed(model: Any, directory: Path, block: int) -> None:
    """In Hugging Face's form, with the names of transformers."""
    found: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        if any(part in name for part in PLAIN):
            found[name] = weight
        elif weight.dim() == 3:
            halves = 2 if "gate_up" in name else 1
            parts = [rounded(one, block, halves) for one in weight]
            found[name] = torch.stack([values.view(torch.uint8) for values, _ in parts]).view(torch.float8_e4m3fn)
            found[f"{name}_scale_inv"] = torch.stack([scales for _, scales in parts])
            found[f"{name}_activation_scale"] = torch.ones(len(weight))
        else:
            values, scales = rounded(weight, block)
            found[name], found[f"{name}_scale_inv"] = values, scales if block else scales[0, 0]
    (directory / "config.json").write_text(
        json.dumps(
            json.loads(model.config.to_json_string())
            | {"quantization_config": HF | {"weight_block_size": [block, block] if block else None}}
            | {"dtype": "bfloat16"}
        )
    )
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, directory / "model.safetensors")


def save_native(model: Any, directory: Path, block: int) -> None:
    """With native names: a scale of each tensor as in Small 4, or blocks as in Large 3."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in PLAIN):
                continue
            for one in weight if weight.dim() == 3 else [weight]:
                rounded(one, block, 2 if "gate_up" in name else 1)
    found: dict[str, Tensor] = {}
    plain = ("tok_embeddings", "output", ".gate.", "wq_a", "wkv_a", "norm")
    for name, weight in native_tensors(model).items():
        if any(part in name for part in plain):
            found[name] = weight
            continue
        values, scales = rounded(weight.clone(), block)
        role = "weight_scale" if block else "qscale_weight"
        found[name] = values
        found[name.removesuffix("weight") + role] = scales if block else scales[0, 0]
        if not block:
            found[name.removesuffix("weight") + "qscale_act"] = torch.tensor(1.0)
    key, config = (
        ("quantization_config", compressed(block))
        if block
        else ("quantization", {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"})
    )
    (directory / "params.json").write_text(json.dumps(native_params(model.config, **{key: config})))
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, directory / "consolidated.safetensors")


@pytest.mark.parametrize("save", [save_packed, save_native])
@pytest.mark.parametrize("block", [0, 16, 128], ids=["tensor", "blocks of 16", "blocks of 128"])
def test_log_probabilities_are_those_of_the_dequantized_weights(save: Any, block: int, tmp_path: Path) -> None:
    """Blocks of 128, as published, end in the middle: sizes are no multiples, but for those of experts."""
    model = mistral4(hidden_size=192, moe_intermediate_size=128, q_lora_rank=144) if block == 128 else mistral4()
    with torch.no_grad():
        save(model, tmp_path, block)
    found = Driver(loaded(tmp_path), make("sdpa")).whole(TOKENS).log_softmax(-1)
    torch.testing.assert_close(found, logprobs(model), atol=1e-4, rtol=0)


def test_packed_experts_without_a_scale_for_each_are_damaged(tmp_path: Path) -> None:
    model = mistral4()
    with torch.no_grad():
        save_packed(model, tmp_path, block=0)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("down_proj_scale_inv") and "experts.down" in name)
    save_file({**tensors, name: tensors[name][:-1].contiguous()}, path)
    with pytest.raises(Exception, match="expected one matrix of each for every expert"):
        loaded(tmp_path)
