"""Conversion of a GGUF file to a directory: configuration and tokenizer in Hugging Face's format, index of weights.

The weights stay in the file. No torch.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model.checkpoint.files import Progress
from model.checkpoint.gguf.index import FLOATS, Entry, Index
from model.checkpoint.gguf.reader import read_gguf
from model.checkpoint.gguf.tokenizer import write_tokenizer
from model.checkpoint.names import GGUF, native_name
from model.errors import ModelError, one_line, short

EMBEDDINGS = "tok_embeddings.weight"


def convert(source: Path, directory: Path, progress: Progress) -> None:
    """Write what serving the model in `source` needs, except its weights, to `directory`, which exists.

    Raises ModelError for a damaged file, for another architecture, and for a quantization without a decoder.
    """
    progress("reading", 0.0)
    file = read_gguf(source)
    entries = [entry for tensor in file.tensors for entry in _entries(tensor)]
    shapes = {entry.name: entry.shape for entry in entries}
    if EMBEDDINGS not in shapes:
        raise ModelError(f"{source.name} has no tensor 'token_embd.weight'; a model needs it")
    try:
        configs = {"config.json": hf_config(file.metadata, shapes)}
        configs["generation_config.json"] = _generation_config(file.metadata)
        for name, config in configs.items():
            (directory / name).write_text(json.dumps(config, indent=1), encoding="utf-8")
        write_tokenizer(file.metadata, directory)
    except KeyError as error:
        raise ModelError(f"{source.name} has no {error} in its metadata; a model of this kind needs it") from error
    except (ModelError, OSError):
        raise
    except Exception as error:  # a value of another type or size; tokenizers raises Exception itself
        raise ModelError(f"{source.name} has metadata that no model can have: {one_line(error)}") from error
    Index(source, tuple(entries)).write(directory)


def hf_config(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """`config.json` from GGUF metadata and the weights' shapes by native name.

    Raises ModelError for an architecture or a RoPE scaling that is not supported, KeyError for a missing field.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"the GGUF file has architecture {short(architecture)}; Noria supports llama")
    values = {name.removeprefix("llama."): value for name, value in metadata.items()}
    dim, n_heads = (_whole(values, name) for name in ("embedding_length", "attention.head_count"))
    config = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": dim,
        "intermediate_size": values["feed_forward_length"],
        "num_hidden_layers": values["block_count"],
        "num_attention_heads": n_heads,
        "num_key_value_heads": values.get("attention.head_count_kv", n_heads),
        "head_dim": values.get("attention.key_length", dim // n_heads),
        "vocab_size": shapes[EMBEDDINGS][0],
        "max_position_embeddings": values["context_length"],
        "rms_norm_eps": float(f"{values['attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": values.get("rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(values),
        "tie_word_embeddings": "output.weight" not in shapes,
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


def _whole(values: Mapping[str, Any], name: str) -> int:
    value = values[name]
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"the GGUF file has {short(value)} in {name}, expected a number of at least 1")
    return value


def _rope_scaling(values: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = values.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ModelError(f"the GGUF file has RoPE scaling {short(kind)}; Noria supports none, linear, yarn")
    scaling = {"rope_type": kind, "factor": values["rope.scaling.factor"]}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = values["rope.scaling.original_context_length"]
    return scaling


def _generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """End tokens that the file names: `eos` (sequence), `eot` (turn, GGUF's word) and `eom` (message)."""
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    config = {"eos_token_id": list(dict.fromkeys(end for end in ends if end is not None))}
    return {name: value for name, value in config.items() if value}


def _entries(tensor: Entry) -> Iterator[Entry]:
    """An entry for the tensor, or one for each expert in it. Raises ModelError for an unknown name or kind."""
    if tensor.name == "rope_freqs.weight":
        raise ModelError(
            "the GGUF file has rope_freqs.weight (RoPE factors of kind llama3); Noria does not support them in GGUF, "
            "use the model's safetensors"
        )
    name = native_name(tensor.name, GGUF)
    if name is None:
        raise ModelError(f"the GGUF file has a tensor {short(tensor.name)}, which no supported model family has")
    _check_decoder(tensor)
    if "*" not in name:
        yield Entry(name, tensor.kind, tensor.shape, tensor.offset, tensor.n_bytes)
        return
    n_experts, *shape = tensor.shape
    size = tensor.n_bytes // n_experts
    for expert in range(n_experts):
        where = tensor.offset + expert * size
        yield Entry(name.replace("*", str(expert)), tensor.kind, tuple(shape), where, size)


def _check_decoder(tensor: Entry) -> None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    if tensor.kind in FLOATS:
        return
    kind = GGMLQuantizationType[tensor.kind]
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)  # a row of one block
    except NotImplementedError as error:
        raise ModelError(f"the GGUF file has {tensor.name!r} in {kind.name}; Noria has no decoder for that") from error
