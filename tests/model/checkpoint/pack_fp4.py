"""Prints packed_fp4.json: weights that the package compressed-tensors packed, and what it unpacks them to.

`python -m tests.model.checkpoint.pack_fp4 > tests/model/checkpoint/packed_fp4.json`, with compressed-tensors 0.20.0,
which no test needs.
"""

import json
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

N_OUT, N_IN = 4, 64


def packed(preset: str) -> dict[str, Any]:
    scheme = preset_name_to_scheme(preset, ["Linear"])
    args = scheme.weights
    weight = torch.randn(N_OUT, N_IN) * torch.logspace(-3, 0, N_IN)
    groups = weight.unflatten(1, (-1, args.group_size))
    whole = generate_gparam(weight.min(), weight.max()) if args.group_size == 16 else None
    scale, _ = calculate_qparams(groups.amin(2), groups.amax(2), args, whole)
    state = {"weight": weight, "weight_scale": scale}
    if whole is not None:
        state["weight_global_scale"] = whole
    form = f"{preset[:5].lower()}-pack-quantized"
    parts = BaseCompressor.get_value_from_registry(form).compress(state, scheme)
    codes = unpack_fp4_from_uint8(parts["weight_packed"], N_OUT, N_IN, torch.float32)
    stored_scale = parts["weight_scale"] if whole is not None else decompress_mx_scale(parts["weight_scale"])
    meant = dequantize(codes, stored_scale.float(), args=args, dtype=torch.float32, global_scale=whole)
    config = QuantizationConfig(config_groups={"group_0": scheme}, format=form, ignore=["lm_head"])
    stored = {name: part.contiguous().view(torch.uint8).numpy().tobytes().hex() for name, part in parts.items()}
    return {"config": json.loads(config.model_dump_json()), "parts": stored, "weight": meant.numpy().tobytes().hex()}


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps({preset: packed(preset) for preset in ("NVFP4A16", "NVFP4", "MXFP4A16")}, indent=1))
