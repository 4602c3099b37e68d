"""The `config.json` of published models, as far as Noria reads it."""

from typing import Any

MISTRAL_7B: dict[str, Any] = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32768,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
