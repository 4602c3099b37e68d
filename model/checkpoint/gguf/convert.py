"""Conversion of a GGUF file to a directory: configuration and tokenizer in Hugging Face's format, index of weights.

The weights stay in the file. The gguf package takes seconds to read the metadata of a file; the index is read at once.
No torch.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model.checkpoint.files import Progress
from model.checkpoint.gguf.index import FLOATS, Entry, Index
from model.checkpoint.gguf.tokenizer import write_tokenizer
from model.checkpoint.names import GGUF, native_name
from model.errors import ModelError, one_line


def convert(source: Path, directory: Path, progress: Progress) -> None:
    """Write what serving the model in `source` needs, except its weights, to `directory`, which exists.

    Raises ModelError for a damaged file, for another architecture, and for a quantization without a decoder.
    """
    from gguf import GGUFReader

    progress("reading", 0.0)
    try:
        reader = GGUFReader(source)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise ModelError(f"{source.name} is not a readable GGUF file: {one_line(error)}") from error
    if reader.byte_order == "S":
        raise ModelError(f"{source.name} has another byte order than this machine; convert the file")
    entries = [entry for tensor in reader.tensors for entry in _entries(tensor)]
    try:
        config = hf_config(metadata, {entry.name: entry.shape for entry in entries})
        write_tokenizer(metadata, directory)
    except KeyError as error:
        raise ModelError(f"{source.name} has no {error} in its metadata; a model of this kind needs it") from error
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", _generation_config(metadata))
    Index(source, tuple(entries)).write(directory)


def hf_config(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """`config.json` from GGUF metadata and the weights' shapes by native name.

    Raises ModelError for an architecture or a RoPE scaling that is not supported, KeyError for a missing field.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"the GGUF file has architecture {architecture!r}; Noria supports llama")
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
        "vocab_size": shapes["tok_embeddings.weight"][0],
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


def _rope_scaling(values: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = values.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ModelError(f"the GGUF file has RoPE scaling {kind!r}; Noria supports none, linear, yarn")
    scaling = {"rope_type": kind, "factor": values["rope.scaling.factor"]}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = values["rope.scaling.original_context_length"]
    return scaling


def _generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """End tokens that the file names: `eos` (sequence), `eot` (turn, GGUF's word) and `eom` (message)."""
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    config = {"eos_token_id": list(dict.fromkeys(end for end in ends if end is not None))}
    return {name: value for name, value in config.items() if value}


def _entries(tensor: Any) -> Iterator[Entry]:
    """An entry for the tensor, or one for each expert in it. Raises ModelError for an unknown name or kind."""
    if tensor.name == "rope_freqs.weight":
        raise ModelError(
            "the GGUF file has rope_freqs.weight (RoPE factors of kind llama3); Noria does not support them in GGUF, "
            "use the model's safetensors"
        )
    name = native_name(tensor.name, GGUF)
    if name is None:
        raise ModelError(f"the GGUF file has a tensor {tensor.name!r}, which no supported model family has")
    _check_decoder(tensor)
    kind, offset, n_bytes = tensor.tensor_type.name, int(tensor.data_offset), int(tensor.n_bytes)
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if "*" not in name:
        yield Entry(name, kind, shape, offset, n_bytes)
        return
    size = n_bytes // shape[0]
    for expert in range(shape[0]):
        yield Entry(name.replace("*", str(expert)), kind, shape[1:], offset + expert * size, size)


def _check_decoder(tensor: Any) -> None:
    from gguf.quants import dequantize

    if (kind := tensor.tensor_type).name in FLOATS:
        return
    try:
        dequantize(tensor.data.reshape(-1, tensor.data.shape[-1])[:1], kind)
    except NotImplementedError as error:
        raise ModelError(f"the GGUF file has {tensor.name!r} in {kind.name}; Noria has no decoder for that") from error


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
