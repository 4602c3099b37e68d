"""A GGUF file as a directory in HF format: weights dequantized to bf16, config, tokenizer. numpy only, no torch.

GGUF's llama architecture stores the q and k rows for adjacent-pair rotation; HF's checkpoints want half-split rows,
so they are put back. Weights are written one tensor at a time: memory stays at one dequantized tensor.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model.checkpoint.gguf_tokenizer import write_tokenizer
from model.errors import ModelError

Progress = Callable[[str, float], None]

_NAMES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"token_embd\.weight", "model.embed_tokens.weight"),
        (r"output_norm\.weight", "model.norm.weight"),
        (r"output\.weight", "lm_head.weight"),
        (r"blk\.(\d+)\.attn_norm\.weight", r"model.layers.\1.input_layernorm.weight"),
        (r"blk\.(\d+)\.ffn_norm\.weight", r"model.layers.\1.post_attention_layernorm.weight"),
        (r"blk\.(\d+)\.attn_([qkv])\.weight", r"model.layers.\1.self_attn.\2_proj.weight"),
        (r"blk\.(\d+)\.attn_output\.weight", r"model.layers.\1.self_attn.o_proj.weight"),
        (r"blk\.(\d+)\.ffn_(gate|up|down)\.weight", r"model.layers.\1.mlp.\2_proj.weight"),
        (r"blk\.(\d+)\.ffn_gate_inp\.weight", r"model.layers.\1.block_sparse_moe.gate.weight"),
        (r"blk\.(\d+)\.ffn_gate_exps\.weight", r"model.layers.\1.block_sparse_moe.experts.*.w1.weight"),
        (r"blk\.(\d+)\.ffn_down_exps\.weight", r"model.layers.\1.block_sparse_moe.experts.*.w2.weight"),
        (r"blk\.(\d+)\.ffn_up_exps\.weight", r"model.layers.\1.block_sparse_moe.experts.*.w3.weight"),
    )
)


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor to write: its HF name and shape, and the GGUF tensor (and expert) it comes from."""

    name: str
    shape: tuple[int, ...]
    source: Any
    expert: int | None = None


def convert(source: Path, directory: Path, progress: Progress) -> None:
    """Write the model in `source` to the existing `directory` in HF format.

    Raises ModelError for a damaged file, another architecture, or a quantization without a decoder.
    """
    from gguf import GGUFReader

    progress("reading", 0.0)
    try:
        reader = GGUFReader(source)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise ModelError(f"{source.name} is no readable GGUF file: {str(error).splitlines()[0]}") from error
    weights = list(_weights(reader.tensors))
    try:
        config = hf_config(metadata, {weight.name: weight.shape for weight in weights})
        write_tokenizer(metadata, directory)
    except KeyError as error:
        raise ModelError(f"{source.name} lacks {error}, which a model of this kind must have") from error
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", _generation_config(metadata))
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    _write_safetensors(directory / "model.safetensors", weights, heads, progress)


def hf_config(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """`config.json` from GGUF metadata and the weights' shapes by HF name.

    Raises ModelError for an architecture or a RoPE scaling not supported, KeyError for what is missing.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"the GGUF has architecture {architecture!r}, supported is llama")
    values = {name.removeprefix("llama."): value for name, value in metadata.items()}
    dim, n_heads = values["embedding_length"], values["attention.head_count"]
    config = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": dim,
        "intermediate_size": values["feed_forward_length"],
        "num_hidden_layers": values["block_count"],
        "num_attention_heads": n_heads,
        "num_key_value_heads": values.get("attention.head_count_kv", n_heads),
        "head_dim": values.get("attention.key_length", dim // n_heads),
        "vocab_size": shapes["model.embed_tokens.weight"][0],
        "max_position_embeddings": values["context_length"],
        "rms_norm_eps": float(f"{values['attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": values.get("rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(values),
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "bos_token_id": values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": values.get("tokenizer.ggml.eos_token_id"),
        "dtype": "bfloat16",
    }
    if window := values.get("attention.sliding_window"):
        config |= {"model_type": "mistral", "sliding_window": window}
    if experts := values.get("expert_count"):
        config |= {"model_type": "mixtral", "num_local_experts": experts}
        config |= {"num_experts_per_tok": values["expert_used_count"], "sliding_window": window}
    names = {"llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral"}
    return config | {"architectures": [f"{names[config['model_type']]}ForCausalLM"]}


def _rope_scaling(values: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = values.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ModelError(f"the GGUF has RoPE scaling {kind!r}, supported are none, linear, yarn")
    scaling = {"rope_type": kind, "factor": values["rope.scaling.factor"]}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = values["rope.scaling.original_context_length"]
    return scaling


def _generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """End tokens: end of sequence, of turn and of message, where the file names them."""
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    config = {"eos_token_id": list(dict.fromkeys(end for end in ends if end is not None))}
    return {name: value for name, value in config.items() if value}


def _weights(tensors: list[Any]) -> Iterator[Weight]:
    for tensor in tensors:
        if tensor.name == "rope_freqs.weight":
            raise ModelError(
                "the GGUF has rope_freqs.weight (RoPE factors of kind llama3), which is not supported yet in GGUF; "
                "use the model's safetensors"
            )
        matches = ((pattern.fullmatch(tensor.name), template) for pattern, template in _NAMES)
        name = next((match.expand(template) for match, template in matches if match), None)
        if name is None:
            raise ModelError(f"the GGUF has a tensor {tensor.name!r} that no supported family has")
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if "*" not in name:
            yield Weight(name, shape, tensor)
        else:
            yield from (Weight(name.replace("*", str(e)), shape[1:], tensor, e) for e in range(shape[0]))


def _write_safetensors(path: Path, weights: list[Weight], heads: Mapping[str, int], progress: Progress) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights:
        start, end = end, end + 2 * int(np.prod(weight.shape))
        header[weight.name] = {"dtype": "BF16", "shape": weight.shape, "data_offsets": (start, end)}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for index, weight in enumerate(weights):
            values = _dequantize(weight).reshape(weight.shape)
            if match := re.search(r"self_attn\.([qk])_proj", weight.name):
                values = half_split(values, heads[match[1]])
            file.write(to_bfloat16(values).astype("<u2", copy=False).tobytes())
            progress("converting", (index + 1) / len(weights))


def _dequantize(weight: Weight) -> np.ndarray:
    from gguf.quants import dequantize

    data, kind = weight.source.data, weight.source.tensor_type
    try:
        return dequantize(data if weight.expert is None else data[weight.expert], kind)
    except NotImplementedError as error:
        raise ModelError(
            f"the GGUF has a tensor {weight.source.name!r} in {kind.name}, which has no decoder"
        ) from error


def half_split(values: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of q or k from adjacent pairs to half-split: of each head the even rows first, then the odd ones.

    values [n_heads * head_dim, ...]; one head with rows 0 1 2 3 becomes 0 2 1 3.
    """
    pairs = values.reshape(n_heads, values.shape[0] // n_heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to the upper half of its bits, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
