"""Native checkpoints for tests: a directory in Hugging Face's format, written again as Mistral writes its own.

The names, the order of the rows and the fields are those of Mistral's published files. Nothing here uses our reading.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

NAMES = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "block_sparse_moe.gate": "feed_forward.gate",
}
"""Names without the number of the layer and ".weight"."""
YARN = {"factor": "factor", "original_max_position_embeddings": "original_max_position_embeddings"}
YARN |= {"beta_fast": "beta", "beta_slow": "alpha"}


def half_to_adjacent(rows: Tensor, head_dim: int) -> Tensor:
    """The order of q and k rows in a native file, from that of a Hugging Face file."""
    return rows.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def tensors_of(directory: Path) -> dict[str, Tensor]:
    """All tensors in the safetensors files of a directory, by name."""
    return {name: tensor for path in directory.glob("*.safetensors") for name, tensor in load_file(path).items()}


def save_native(hf: Path, directory: Path, **changes: Any) -> Path:
    """Write the checkpoint in `hf` to `directory`, as params.json and consolidated.safetensors.

    `hf` has one of the text models that have a native form. `changes` are fields of params.json; None removes one.
    """
    config = json.loads((hf / "config.json").read_text())
    params = native_params(config) | changes
    tensors = {}
    for name, tensor in tensors_of(hf).items():
        known = native_name(name)
        rotated = known.endswith((".wq.weight", ".wk.weight"))
        tensors[known] = (half_to_adjacent(tensor, params["head_dim"]) if rotated else tensor).contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in params.items() if value is not None}
    (directory / "params.json").write_text(json.dumps(kept))
    save_file(tensors, directory / "consolidated.safetensors")
    return directory


def native_name(name: str) -> str:
    """Mistral's name of a weight, from that of Hugging Face. Raises KeyError for a name that it does not know."""
    stem = name.removesuffix(".weight")
    if stem in NAMES:
        return f"{NAMES[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    if part.startswith("block_sparse_moe.experts."):
        return f"layers.{layer}.feed_forward.{part.removeprefix('block_sparse_moe.')}.weight"
    return f"layers.{layer}.{NAMES[part]}.weight"


def native_params(config: dict[str, Any]) -> dict[str, Any]:
    """params.json from a config.json of transformers 5 whose layers have one RoPE."""
    rope = config["rope_parameters"]
    params = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        "hidden_dim": config["intermediate_size"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
        "rope_theta": rope["rope_theta"],
        "max_position_embeddings": config["max_position_embeddings"],
        "tied_embeddings": config["tie_word_embeddings"],
        "sliding_window": _windows(config),
    }
    if rope["rope_type"] == "yarn":
        params["yarn"] = {native: rope[key] for key, native in YARN.items() if key in rope}
        params["yarn"]["apply_scale"] = rope.get("mscale_all_dim", 0) == 0
    if "llama_4_scaling_beta" in rope:
        original = rope["original_max_position_embeddings"]
        params["llama_4_scaling"] = {"original_max_position_embeddings": original, "beta": rope["llama_4_scaling_beta"]}
    if "num_local_experts" in config:
        experts = {"num_experts": config["num_local_experts"], "num_experts_per_tok": config["num_experts_per_tok"]}
        params["moe"] = experts
    return params


def _windows(config: dict[str, Any]) -> Any:
    """One window for all layers, or a list with one for each layer."""
    window = config.get("sliding_window")
    if not (kinds := config.get("layer_types")):
        return window
    return [window if kind == "sliding_attention" else None for kind in kinds]
