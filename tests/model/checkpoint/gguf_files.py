"""GGUF files for tests: random networks of transformers, and files with embeddings only."""

import struct
from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from model.checkpoint.open import open_checkpoint
from model.checkpoint.stored import Stored

DIM, HIDDEN, HEADS, KV_HEADS, VOCAB = 32, 64, 4, 2, 20
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}

FACTORS = {
    **dict.fromkeys(("Q4_K", "Q5_K"), (0, 2)),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S"), (0,)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
"""Bytes of the float16 factors in the blocks for which the package has no encoder."""
EXPONENTS = {"IQ1_M": ((55,), 0x10), "MXFP4": ((0,), 0x70), "NVFP4": ((0, 1, 2, 3), 0x20)}
"""Bytes of other factors, and what their upper halves are set to: values that are neither huge nor NaN."""
BITS = {"Q1_0": (41, 128, 1), "Q2_0": (42, 64, 2)}
"""Number, values of a block, and bits of a value where the package has no decoder (llama.cpp, 01243c58)."""
KINDS = (*BITS, "Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", *FACTORS, *EXPONENTS, "F16", "BF16", "F32")


def permute(weights: np.ndarray, n_heads: int) -> np.ndarray:
    """The rows in the order of llama.cpp's converter: adjacent pairs, made from halves."""
    return weights.reshape(n_heads, 2, weights.shape[0] // n_heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def encoded(kind: str, n_out: int, n_in: int, random: np.random.Generator) -> np.ndarray:
    """Random rows in this kind; where the package has no encoder, random bytes with factors that are numbers."""
    if kind in BITS:
        _, block, bits = BITS[kind]
        data = random.integers(0, 256, (n_out, n_in // block, 2 + block * bits // 8), dtype=np.uint8)
        factors = random.uniform(0.001, 0.02, data.shape[:2]).astype(np.float16)
        data[:, :, :2] = factors.view(np.uint8).reshape(*data.shape[:2], 2)
        return data.reshape(n_out, -1)
    if kind not in FACTORS and kind not in EXPONENTS:
        values = random.standard_normal((n_out, n_in)).astype(np.float32)
        return quantize(values, GGMLQuantizationType[kind])
    block, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    data = random.integers(0, 256, (n_out, n_in // block, n_bytes), dtype=np.uint8)
    places, upper = EXPONENTS.get(kind, ((), 0))
    data[:, :, places] = data[:, :, places] & 15 | upper
    for at in FACTORS.get(kind, ()):
        factors = random.uniform(0.001, 0.02, data.shape[:2]).astype(np.float16)
        data[:, :, at : at + 2] = factors.view(np.uint8).reshape(*data.shape[:2], 2)
    return data.reshape(n_out, -1)


def meant(data: np.ndarray, kind: str) -> np.ndarray:
    """The values of rows as the package decodes them, or value by value as llama.cpp's C does."""
    if kind not in BITS:
        return dequantize(data, GGMLQuantizationType[kind])
    _, block, bits = BITS[kind]
    rows: list[list[float]] = []
    for row in data.reshape(len(data), -1, 2 + block * bits // 8):
        rows.append([])
        for record in row:
            (d,) = struct.unpack("<e", record[:2].tobytes())
            for j in range(block):
                q = int(record[2 + j * bits // 8]) >> (j * bits % 8) & (2**bits - 1)
                rows[-1].append((d if q else -d) if kind == "Q1_0" else (q - 1) * d)
    return np.array(rows, np.float32)


def add(file: GGUFWriter, name: str, data: np.ndarray, kind: str) -> None:
    """Add rows of a kind, which the package may not know."""
    if kind not in BITS:
        file.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])
        return
    number, block, bits = BITS[kind]
    shape = (len(data), data.shape[1] // (2 + block * bits // 8) * block)
    file.add_tensor_info(name, shape, np.dtype(np.float32), data.nbytes, number)
    file.tensors[-1][name].tensor = data


def new_file(path: Path, architecture: str = "llama", **split: int) -> GGUFWriter:
    """Metadata of a small model, and embeddings; `write` ends it. `split` are the writer's options for parts."""
    writer = GGUFWriter(path, architecture, **split)
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    tokens = ["<s>", "</s>", *"abcdefghijklmnopq", "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * 18)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_tensor("token_embd.weight", np.ones((VOCAB, DIM), np.float32))
    return writer


def tensors(model: torch.nn.Module) -> list[tuple[str, np.ndarray]]:
    """The weights of a transformers model under GGUF's names."""
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    names |= {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
    names |= {"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {"mlp.gate": "ffn_gate_inp"}
    found = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    found |= {"lm_head.weight": "output.weight"}
    result = []
    for name, parameter in model.named_parameters():
        values = parameter.detach().float().numpy()
        if name in found:
            result.append((found[name], values))
            continue
        _, _, layer, *rest = name.split(".")
        if "experts" in rest:
            parts = np.split(values, 2, axis=1) if rest[-1] == "gate_up_proj" else [values]
            kinds = ("gate", "up") if rest[-1] == "gate_up_proj" else ("down",)
            result += [(f"blk.{layer}.ffn_{kind}_exps.weight", part) for kind, part in zip(kinds, parts, strict=True)]
            continue
        short = names[".".join(rest[:-1])]
        if short in ("attn_q", "attn_k"):
            values = permute(values, HEADS if short == "attn_q" else KV_HEADS)
        result.append((f"blk.{layer}.{short}.weight", values))
    return result


def write(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def save(kind: str, path: Path, formats: tuple[str, ...] = ("F32",)) -> torch.nn.Module:
    """A random network, which is also written as a GGUF file. Its matrices take these formats one after the other."""
    torch.manual_seed(0)
    sizes = {**SIZES, "initializer_range": 0.2}
    if kind == "mixtral":
        original = MixtralForCausalLM(
            MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2, rope_theta=1e4)
        )
    else:
        original = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=kind == "llama tied"))
    writer = new_file(path)
    if kind == "mixtral":
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
    store(original, writer, formats)
    return original


def store(original: torch.nn.Module, writer: GGUFWriter, formats: tuple[str, ...] = ("F32",)) -> None:
    """Write the network's weights and end the file. The matrices take these formats one after the other."""
    writer.tensors[0].pop("token_embd.weight")
    for number, (name, values) in enumerate(tensors(original)):
        quantization = GGMLQuantizationType["F32" if values.ndim == 1 else formats[number % len(formats)]]
        writer.add_tensor(name, quantize(values, quantization), raw_dtype=quantization)
    write(writer)


def stored(kinds: dict[str, str], path: Path, n_out: int = 300, n_in: int = 512) -> dict[str, tuple[Stored, Tensor]]:
    """Random matrices of these kinds: as they come from the file, and what the gguf package makes of them."""
    file = new_file(path)
    random = np.random.default_rng(0)
    expected = {}
    for name, kind in kinds.items():
        data = encoded(kind, n_out, n_in, random)
        expected[name] = torch.from_numpy(meant(data, kind))
        add(file, f"blk.0.attn_{name}.weight", data, kind)
    write(file)
    tensors = dict(open_checkpoint(path).tensors())
    return {name: (tensors[f"layers.0.attention.w{name}.weight"], expected[name]) for name in kinds}
