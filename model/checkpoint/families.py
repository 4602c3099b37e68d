"""Model families, one row each. No torch.

All else about a family is read from its checkpoint: windows, RoPE, head sizes and experts are never assumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from model.checkpoint.configs.audio import REALTIME
from model.checkpoint.configs.fields import Fields
from model.errors import ModelError, short


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults of a `model_type` for fields that its `config.json` does not set, as in transformers.

    `head_dim` None is hidden_size / num_attention_heads, `n_kv_heads` None is num_attention_heads. `windows` says what
    the family has: none whatever the file says, one for all layers, or one for the layers that `layer_types` names.
    `experts` are the keys of a sparse family, each with its field of ModelConfig. `latent` families have latent
    attention. `defaults` are values of other keys, `only` the values of keys which describe what Noria does.
    """

    name: str
    rope_theta: float = 10_000.0
    sliding_window: int | None = None
    experts: Mapping[str, str] = field(default_factory=dict)
    head_dim: int | None = None
    n_kv_heads: int | None = 8
    rope_parameters: Mapping[str, Any] | None = None
    windows: Literal["none", "one", "by type"] = "one"
    latent: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("mistral", sliding_window=4096, windows="by type"),
        Family("ministral", sliding_window=4096, windows="by type"),
        Family(
            "ministral3",
            head_dim=128,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1_000_000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 16_384,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        ),
        Family(
            "mixtral",
            rope_theta=1_000_000.0,
            experts={"num_local_experts": "n_experts", "num_experts_per_tok": "n_experts_per_token"},
        ),
        Family(
            "mistral4",
            n_kv_heads=None,
            windows="none",
            latent=True,
            experts={
                "n_routed_experts": "n_experts",
                "num_experts_per_tok": "n_experts_per_token",
                "moe_intermediate_size": "expert_hidden_dim",
                "n_shared_experts": "n_shared_experts",
                "first_k_dense_replace": "first_k_dense_replace",
                "routed_scaling_factor": "routed_scale",
            },
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 128.0,
                "original_max_position_embeddings": 8192,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
            defaults={
                "q_lora_rank": 1024,
                "kv_lora_rank": 256,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 64,
                "v_head_dim": 128,
                "n_routed_experts": 128,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 2048,
                "n_shared_experts": 1,
                "first_k_dense_replace": 0,
                "routed_scaling_factor": 1.0,
            },
            only={"n_group": (1, None), "topk_group": (1, None), "norm_topk_prob": (True,), "rope_interleave": (True,)},
        ),
        Family("llama", n_kv_heads=None, windows="none"),
    )
}
WRAPPERS: Mapping[str, str] = {"mistral3": "mistral", "llava": "llama", "voxtral": "llama"}
"""Models with an encoder, each with the family of its text if `text_config` names none. Pixtral 12B is a llava."""

_LARGE_4 = "a sparse index of tokens, learned RoPE scales and caches shared by layers (Mistral Large 4)"
_MISSING: Mapping[str, str] = {
    "mistral_large4": _LARGE_4,
    "mistral_large4_text": _LARGE_4,
    "deepseek_v3": "a sigmoid router with a correction bias and groups of experts (DeepSeek V3)",
    "voxtral_realtime": REALTIME,
    "mamba": "a state space layer (Mamba)",
    "mamba2": "a state space layer (Codestral Mamba)",
    "pixtral": "an image encoder without a text model (Pixtral)",
}
"""Missing features of Noria, by the `model_type` that needs them."""

_WITHOUT = ("attention_bias", "mlp_bias", "use_qk_norm", "attn_logit_softcapping", "final_logit_softcapping")
_ONLY: Mapping[str, tuple[Any, ...]] = {"hidden_act": ("silu", "swish"), **dict.fromkeys(_WITHOUT, (False, None))}
"""Fields that would change the computation, and the values with which they do not."""


def family_of(raw: Fields) -> Family:
    """Return the family that `model_type` names. Raises ModelError for one that Noria does not have."""
    kind = raw.get("model_type", "")
    if not isinstance(kind, str):
        raise raw.must("have a name", "model_type")
    served = f"Noria supports {', '.join((*FAMILIES, *WRAPPERS))}"
    if kind in _MISSING:
        raise ModelError(f"{raw.file} has model_type {kind!r}, which needs {_MISSING[kind]}: Noria has none; {served}")
    if kind not in FAMILIES and raw.get("auto_map"):
        raise ModelError(
            f"{raw.file} has model_type {short(kind)} with code of its own (auto_map), which Noria never runs; {served}"
        )
    if kind not in FAMILIES:
        raise ModelError(f"{raw.file} has model_type {short(kind)}; {served}")
    raw.check({**_ONLY, **FAMILIES[kind].only})
    return FAMILIES[kind]
