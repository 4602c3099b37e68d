"""Small random models with latent attention, of transformers: Mistral 4, and DeepSeek V3 with dense layers.

Sizes are those of no published model: the channels with and without rotary positions, the latent and the value differ.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.model.network.oracles import TOKENS, VOCAB

ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 12,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
    "attention_factor": 1.0,
}
"""Neither scores nor the channels that rotate are scaled, as in published native files."""
LLAMA_4 = {"llama_4_scaling_beta": 0.4}
SHAPE: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.3,
    "q_lora_rank": 32,
    "kv_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 24,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 96,
    "pad_token_id": None,
    "attn_implementation": "eager",
}


def mistral4(**changes: Any) -> Any:
    """Mistral 4 as text alone."""
    config = transformers.Mistral4Config(**_sizes({**ROPE, **LLAMA_4}, changes))
    return filled(transformers.Mistral4ForCausalLM(config))


VISION = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
VISION |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8, "hidden_act": "silu"}


def mistral3(vision: Mapping[str, Any] = VISION, **changes: Any) -> Any:
    """Mistral 4 beside an image encoder, as it is published."""
    text = {"model_type": "mistral4", **_sizes({**ROPE, **LLAMA_4}, changes)}
    config = transformers.Mistral3Config(text_config=text, vision_config=dict(vision), tie_word_embeddings=False)
    return filled(transformers.Mistral3ForConditionalGeneration(config))


def text_of(model: Any) -> Any:
    """The text model of a `mistral3`, with the same weights."""
    text = transformers.Mistral4ForCausalLM(model.config.text_config)
    text.model, text.lm_head = model.model.language_model, model.lm_head
    return text.eval()


def deepseek_v3(**changes: Any) -> Any:
    """DeepSeek V3 without experts, whose router is another one."""
    sizes = _sizes(ROPE, {"first_k_dense_replace": SHAPE["num_hidden_layers"], **changes})
    config = transformers.DeepseekV3Config(**sizes)
    return filled(transformers.DeepseekV3ForCausalLM(config))


def _sizes(rope: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's fields. transformers writes into the RoPE parameters that it is given."""
    return {**SHAPE, **changes, "rope_parameters": dict(changes.get("rope_parameters", rope))}


def filled(model: nn.Module) -> nn.Module:
    """The model with random weights that make attention and experts sharp; norms are not all ones."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 * parameter.shape[-1] ** -0.5)
    return model.eval()


def logprobs(model: nn.Module) -> Tensor:
    """Log probabilities [len(TOKENS), VOCAB] after each of TOKENS."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([TOKENS])).logits[0].log_softmax(-1)


ATTENTION = {
    "q_proj": "wq",
    "q_a_proj": "wq_a",
    "q_a_layernorm": "q_a_norm",
    "q_b_proj": "wq_b",
    "kv_a_proj_with_mqa": "wkv_a_with_mqa",
    "kv_a_layernorm": "kv_a_norm",
    "kv_b_proj": "wkv_b",
    "o_proj": "wo",
}
PARTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def native_tensors(model: Any) -> dict[str, Tensor]:
    """The weights under the names of native files since Mistral Large 3; rows are those of Hugging Face."""
    given = model.state_dict()
    found = {"tok_embeddings.weight": given["model.embed_tokens.weight"], "norm.weight": given["model.norm.weight"]}
    found["output.weight"] = given["lm_head.weight"]
    for number, layer in enumerate(model.model.layers):
        own = f"layers.{number}"
        found[f"{own}.attention_norm.weight"] = layer.input_layernorm.weight
        found[f"{own}.ffn_norm.weight"] = layer.post_attention_layernorm.weight
        for name, native in ATTENTION.items():
            if getattr(layer.self_attn, name, None) is not None:
                found[f"{own}.attention.{native}.weight"] = getattr(layer.self_attn, name).weight
        found |= _feed_forward(own, layer.mlp)
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}


def _feed_forward(own: str, mlp: Any) -> dict[str, Tensor]:
    if not hasattr(mlp, "experts"):
        return {f"{own}.feed_forward.{native}.weight": getattr(mlp, name).weight for name, native in PARTS.items()}
    found = {f"{own}.gate.weight": mlp.gate.weight}
    for name, native in PARTS.items():
        found[f"{own}.shared_experts.{native}.weight"] = getattr(mlp.shared_experts, name).weight
    for expert, (both, down) in enumerate(zip(mlp.experts.gate_up_proj, mlp.experts.down_proj, strict=True)):
        w1, w3 = both.chunk(2)
        for native, matrix in (("w1", w1), ("w2", down), ("w3", w3)):
            found[f"{own}.experts.{expert}.{native}.weight"] = matrix
    return found


def native_params(config: Any, **changes: Any) -> dict[str, Any]:
    """params.json, with the keys of Mistral Small 4's."""
    rope = config.rope_parameters
    original = rope["original_max_position_embeddings"]
    yarn = {"factor": rope["factor"], "original_max_position_embeddings": original}
    yarn |= {"beta": rope["beta_fast"], "alpha": rope["beta_slow"]}
    yarn["apply_scale"] = bool(rope["mscale_all_dim"])
    params = {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "head_dim": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "hidden_dim": config.intermediate_size,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_attention_heads,
        "rope_theta": rope["rope_theta"],
        "norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "tied_embeddings": False,
        "max_position_embeddings": config.max_position_embeddings,
        "q_lora_rank": config.q_lora_rank,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "qk_nope_head_dim": config.qk_nope_head_dim,
        "kv_lora_rank": config.kv_lora_rank,
        "v_head_dim": config.v_head_dim,
        "yarn": yarn,
    }
    if beta := rope.get("llama_4_scaling_beta"):
        params["llama_4_scaling"] = {"original_max_position_embeddings": original, "beta": beta}
    if config.first_k_dense_replace < config.num_hidden_layers:
        params["moe"] = {
            "expert_parallel": 1,
            "expert_model_parallel": 1,
            "route_every_n": 1,
            "first_k_dense_replace": config.first_k_dense_replace,
            "num_experts": config.n_routed_experts,
            "num_experts_per_tok": config.num_experts_per_tok,
            "num_expert_groups": 1,
            "num_expert_groups_per_tok": 1,
            "routed_scale": config.routed_scaling_factor,
            "expert_hidden_dim": config.moe_intermediate_size,
            "num_shared_experts": config.n_shared_experts,
        }
    return params | changes


def save_native(model: Any, directory: Path, **changes: Any) -> Path:
    """Write a model of text as Mistral writes it; `changes` are fields of params.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "params.json").write_text(json.dumps(native_params(model.config, **changes)))
    save_file(native_tensors(model), directory / "consolidated.safetensors")
    return directory
