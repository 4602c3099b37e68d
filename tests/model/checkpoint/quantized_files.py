"""Checkpoints of quantized safetensors for tests, written from the definitions of their formats, one word at a time.

The integers, zeros and scales are random; what they mean, (q - zero) * scale in float32, is the expected weight. No
quantizer and no decoder takes part.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM

from model.checkpoint.quantized.config import Quantization, read_quantization
from model.checkpoint.quantized.weights import stored_matrix
from model.checkpoint.stored import Stored
from tests.model.checkpoint.native_files import half_to_adjacent, native_name, native_params
from tests.model.fp4 import GROUPS
from tests.model.fp4 import meant as meant_fp4

Parts = dict[str, Tensor]
Make = Callable[[np.random.Generator, int, int], tuple[Parts, Tensor]]

DIM, HIDDEN, HEADS, KV_HEADS, VOCAB, LAYERS = 128, 256, 4, 2, 32, 2
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "sliding_window": 16,
    "tie_word_embeddings": False,
}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of 8 neighbouring outputs lies in the lowest 4 bits, in the next 4 bits, and so on."""


@dataclass(frozen=True)
class Form:
    """One way to store projections: the configuration, and a function that makes the parts of one."""

    make: Make
    config: dict[str, Any]
    native: bool = False
    extra: Parts = field(default_factory=dict)


def words(values: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Unsigned values [n, k] -> int32 [n, ceil(k * bits / 32)], from the lowest bits up; padding is 0."""
    a_word = 32 // bits
    packed = np.zeros((len(values), -(-values.shape[1] // a_word)), np.uint32)
    for word in range(packed.shape[1]):
        for place in range(a_word):
            column = word * a_word + (order[place] if order else place)
            if column < values.shape[1]:
                packed[:, word] |= values[:, column].astype(np.uint32) << np.uint32(bits * place)
    return packed.view(np.int32)


def meant(q: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> Tensor:
    """float32 (q - zero) * scale; q [n_out, n_in], zeros and scales [n_out, n_groups], groups [n_in]."""
    result = np.empty(q.shape, np.float32)
    for channel, group in enumerate(groups):
        exact = q[:, channel].astype(np.float32) - zeros[:, group].astype(np.float32)
        result[:, channel] = exact * scales[:, group].astype(np.float32)
    return torch.from_numpy(result)


def tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def half_scales(random: np.random.Generator, *shape: int) -> np.ndarray:
    return (random.uniform(0.5, 1.5, shape) * 0.03).astype(np.float16)


def integers(
    random: np.random.Generator, n_out: int, n_in: int, group: int, bits: int, symmetric: bool, ordered: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """q, zeros, scales, and the group of each channel."""
    size = n_in if group == -1 else group
    groups = np.arange(n_in) // size
    n_groups = int(groups[-1]) + 1
    if ordered:
        groups = random.permutation(groups)
    q = random.integers(0, 2**bits, (n_out, n_in))
    zeros = np.full((n_out, n_groups), 2 ** (bits - 1))
    if not symmetric:
        zeros = random.integers(0, 2**bits, zeros.shape)
    scales = half_scales(random, n_out, n_groups) * np.float16(1 if bits == 4 else 0.0625)
    return q, zeros, scales, groups


def gptq(group: int, bits: int = 4, *, symmetric: bool = False, ordered: bool = False, version: int = 1) -> Form:
    def make(random: np.random.Generator, n_out: int, n_in: int) -> tuple[Parts, Tensor]:
        q, zeros, scales, groups = integers(random, n_out, n_in, group, bits, symmetric, ordered)
        stored = (zeros - (1 if version == 1 else 0)) % 2**bits
        return {
            "qweight": tensor(words(q, bits).T),
            "qzeros": tensor(words(stored.T, bits)),
            "scales": tensor(scales.T),
            "g_idx": tensor(groups.astype(np.int32)),
            "bias": torch.zeros(n_out, dtype=torch.float16),
        }, meant(q, zeros, scales, groups)

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": ordered}
    return Form(make, config | ({} if version == 1 else {"checkpoint_format": "gptq_v2"}))


def awq(group: int) -> Form:
    def make(random: np.random.Generator, n_out: int, n_in: int) -> tuple[Parts, Tensor]:
        q, zeros, scales, groups = integers(random, n_out, n_in, group, 4, False, False)
        return {
            "qweight": tensor(words(q.T, 4, AWQ_ORDER)),
            "qzeros": tensor(words(zeros.T, 4, AWQ_ORDER)),
            "scales": tensor(scales.T),
        }, meant(q, zeros, scales, groups)

    return Form(make, {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True})


def compressed(weights: dict[str, Any], written: str, make: Make, **more: Any) -> Form:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    config = {"quant_method": "compressed-tensors", "format": written, "config_groups": {"group_0": group}}
    return Form(make, {**config, "ignore": ["lm_head"], "quantization_status": "compressed"}, **more)


def packed(group: int, bits: int = 4, *, symmetric: bool = True, ordered: bool = False) -> Form:
    def make(random: np.random.Generator, n_out: int, n_in: int) -> tuple[Parts, Tensor]:
        q, zeros, scales, groups = integers(random, n_out, n_in, group, bits, symmetric, ordered)
        rounded = torch.from_numpy(scales).bfloat16()
        parts = {
            "weight_packed": tensor(words(q, bits)),
            "weight_scale": rounded,
            "weight_shape": torch.tensor([n_out, n_in]),
        }
        if not symmetric:
            parts["weight_zero_point"] = tensor(words(zeros.T, bits).T)
        if ordered:
            parts["weight_g_idx"] = tensor(groups.astype(np.int32))
        return parts, meant(q, zeros, rounded.float().numpy(), groups)

    strategy = "channel" if group == -1 else "group"
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "group_size": group}
    return compressed(weights | {"actorder": "group" if ordered else None}, "pack-quantized", make)


def bytes8(*, per_tensor: bool = False, symmetric: bool = True) -> Form:
    def make(random: np.random.Generator, n_out: int, n_in: int) -> tuple[Parts, Tensor]:
        q = random.integers(-127, 128, (n_out, n_in)).astype(np.int8)
        zeros = np.zeros((n_out, 1), np.int8)
        if not symmetric:
            zeros = random.integers(-128, 128, zeros.shape).astype(np.int8)
        scales = torch.from_numpy(half_scales(random, 1 if per_tensor else n_out, 1) / 16).bfloat16()
        parts = {"weight": tensor(q), "weight_scale": scales.flatten() if per_tensor else scales}
        if not symmetric:
            parts["weight_zero_point"] = tensor(zeros)
        every = np.broadcast_to(scales.float().numpy(), (n_out, 1))
        return parts, meant(q, zeros, every, np.zeros(n_in, int))

    strategy = "tensor" if per_tensor else "channel"
    return compressed(
        {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": strategy}, "int-quantized", make
    )


def eights(random: np.random.Generator, n_out: int, n_in: int) -> Tensor:
    """fp8 values over their whole range, without NaN."""
    return torch.from_numpy(random.standard_normal((n_out, n_in)).astype(np.float32) * 60).to(torch.float8_e4m3fn)


def fp8(scale: str, activations: str, shape: Callable[[int, int], tuple[int, ...]], dtype: torch.dtype) -> Make:
    """Scales of a tensor, of outputs, or of blocks of 128 x 128, by their shape."""

    def make(random: np.random.Generator, n_out: int, n_in: int) -> tuple[Parts, Tensor]:
        values, size = eights(random, n_out, n_in), shape(n_out, n_in)
        scales = torch.from_numpy(random.uniform(0.5, 1.5, size or (1,)) / 1000).to(dtype)
        expected = values.float().numpy()
        if (len(size) == 2 and size[1] > 1) or size == (-(-n_out // 128), -(-n_in // 128)):
            for row in range(n_out):
                for block in range(size[1]):
                    expected[row, block * 128 : block * 128 + 128] *= scales[row // 128, block].float().numpy()
        else:
            expected = expected * scales.float().numpy().reshape(-1, 1)
        parts = {"weight": values, scale: scales if size else scales[0]}
        return {**parts, **({activations: torch.tensor(0.5, dtype=dtype)} if activations else {})}, torch.from_numpy(
            expected
        )

    return make


def blocks_shape(n_out: int, n_in: int) -> tuple[int, int]:
    return -(-n_out // 128), -(-n_in // 128)


def fp4(kind: str, values: str, scale: str, *, divides: bool) -> Make:
    """Codes of 4-bit floats under `values`. NVFP4 has a second scale for all of them, which multiplies or divides."""

    def make(random: np.random.Generator, n_out: int, n_in: int) -> tuple[Parts, Tensor]:
        codes = tensor(random.integers(0, 256, (n_out, n_in // 2), np.uint8))
        first = 0x30 if kind == "nvfp4" else 117
        scales = tensor(random.integers(first, first + 8, (n_out, n_in // GROUPS[kind]), np.uint8))
        parts = {values: codes, "weight_scale": scales, "input_scale": torch.tensor(0.5)}
        if kind == "mxfp4":
            return parts, torch.from_numpy(meant_fp4(codes, scales)).float()
        whole = torch.tensor(random.uniform(0.5, 1.5) * (20 if divides else 0.05))
        parts |= {"weight_scale": scales.view(torch.float8_e4m3fn), scale: whole[None] if divides else whole}
        factor = 1 / whole.item() if divides else whole.item()
        return parts, torch.from_numpy(meant_fp4(codes, scales, factor)).float()

    return make


FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True}
NVFP4 = FLOAT4 | {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
MXFP4 = FLOAT4 | {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}
CT_NVFP4 = fp4("nvfp4", "weight_packed", "weight_global_scale", divides=True)
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
HF_FP8 = {"quant_method": "fp8", "activation_scheme": "static", "modules_to_not_convert": ["lm_head"]}
FORMS: dict[str, Form] = {
    "native fp8": Form(
        fp8("qscale_weight", "qscale_act", lambda *_: (), torch.bfloat16),
        {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"},
        native=True,
    ),
    "fp8 tensor": Form(
        fp8("weight_scale_inv", "activation_scale", lambda *_: (), torch.bfloat16), HF_FP8 | {"weight_block_size": None}
    ),
    "fp8 blocks": Form(
        fp8("weight_scale_inv", "", blocks_shape, torch.float32), HF_FP8 | {"weight_block_size": [128, 128]}
    ),
    "ct fp8 channel": compressed(
        FLOAT8 | {"strategy": "channel"},
        "float-quantized",
        fp8("weight_scale", "input_scale", lambda n_out, _: (n_out, 1), torch.bfloat16),
    ),
    "ct fp8 blocks": compressed(
        FLOAT8 | {"strategy": "block", "block_structure": [128, 128]},
        "float-quantized",
        fp8("weight_scale", "", blocks_shape, torch.bfloat16),
    ),
    "ct nvfp4": compressed(NVFP4, "nvfp4-pack-quantized", CT_NVFP4),
    "ct mxfp4": compressed(MXFP4, "mxfp4-pack-quantized", fp4("mxfp4", "weight_packed", "", divides=False)),
    "native nvfp4": compressed(NVFP4, "nvfp4-pack-quantized", CT_NVFP4, native=True),
    "modelopt nvfp4": Form(fp4("nvfp4", "weight", "weight_scale_2", divides=False), MODELOPT),
    "modelopt fp8": Form(
        fp8("weight_scale", "input_scale", lambda *_: (), torch.float32), MODELOPT | {"quant_algo": "FP8"}
    ),
    "ct int8 channel": bytes8(),
    "ct int8 tensor": bytes8(per_tensor=True),
    "ct int8 zeros": bytes8(symmetric=False),
    "ct int4 g32": packed(32),
    "ct int4 g64 zeros": packed(64, symmetric=False),
    "ct int4 g64 ordered": packed(64, ordered=True),
    "ct int8 packed g128 zeros": packed(128, 8, symmetric=False),
    "ct int8 packed channel": packed(-1, 8),
    "awq g64": awq(64),
    "awq g128": awq(128),
    "gptq g128": gptq(128),
    "gptq g32 symmetric": gptq(32, symmetric=True),
    "gptq g64 ordered": gptq(64, ordered=True),
    "gptq v2 g64": gptq(64, version=2),
    "gptq channel symmetric": gptq(-1, symmetric=True),
    "gptq 8 bits g32": gptq(32, 8),
}


def tensors(form: Form, model: MistralForCausalLM, seed: int = 0) -> Parts:
    """The tensors of a checkpoint whose weights `model` gets."""
    random = np.random.default_rng(seed)
    found: Parts = {}
    for name, parameter in model.named_parameters():
        module = name.removesuffix(".weight")
        if "_proj" not in name:
            plain = (parameter.detach() * (5 if module == "lm_head" else 1)).bfloat16()
            found[native_name(name) if form.native else name], parameter.data = plain, plain.float()
            continue
        parts, expected = form.make(random, *parameter.shape)
        parameter.data = expected
        for role, part in parts.items():
            rotates = module.endswith(("q_proj", "k_proj"))
            if form.native and rotates and len(part.shape) and len(part) == len(expected):
                octets = part.view(torch.uint8)  # PyTorch moves no rows of fp8
                part = half_to_adjacent(octets, DIM // HEADS).view(part.dtype) if part.itemsize == 1 else part
            known = native_name(name).removesuffix(".weight") if form.native else module
            found[f"{known}.{role}"] = part.contiguous()
    return found


def save(name: str, directory: Path) -> MistralForCausalLM:
    """Write the checkpoint of a form. The answer is transformers' float32 model of the weights that it means."""
    form = FORMS[name]
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SIZES)).float().eval()
    with torch.no_grad():
        found = tensors(form, model)
    if form.native:
        key = "quantization_config" if "config_groups" in form.config else "quantization"
        params = native_params(json.loads(model.config.to_json_string())) | {key: form.config}
        (directory / "params.json").write_text(json.dumps(params))
        save_file(found, directory / "consolidated.safetensors")
        return model
    config = json.loads(model.config.to_json_string()) | {"quantization_config": form.config, "dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(found, directory / "model.safetensors")
    return model


def matrix(name: str, n_out: int = 300, n_in: int = 256) -> tuple[Stored, Tensor]:
    """A matrix of a form as its reader makes it, and what it means."""
    form = FORMS[name]
    parts, wanted = form.make(np.random.default_rng(1), n_out, n_in)
    role = next(role for role in ("weight", "weight_packed", "qweight") if role in parts)
    found = stored_matrix(role, parts, quantization(form))
    assert found.layout in ("groups", "fp4")
    return found, wanted


def quantization(form: Form) -> Quantization:
    with TemporaryDirectory() as folder:
        path = Path(folder)
        name, key = ("params.json", "quantization") if form.native else ("config.json", "quantization_config")
        (path / name).write_text(json.dumps({key: form.config}))
        found = read_quantization(path)
    assert found is not None
    return found
