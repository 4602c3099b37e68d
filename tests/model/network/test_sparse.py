"""A sparse network of every kind of layer against transformers: its Mixtral, with the experts of its Mistral 4."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.model.attention.attending import make
from tests.model.checkpoint.native_files import half_to_adjacent
from tests.model.driving import Driver, loaded
from tests.model.network.oracles import HEAD_DIM, SHAPE, TOKENS

MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "expert_hidden_dim": 20,
    "num_shared_experts": 2,
    "routed_scale": 1.7,
    "num_expert_groups": 1,
    "num_expert_groups_per_tok": 1,
    "expert_parallel": 1,
    "expert_model_parallel": 1,
}


def random_network(sparse_layers: list[bool], window: int | None) -> Any:
    """Mixtral's attention and norms; each layer is dense, or has routed and shared experts in one group."""
    import transformers
    from transformers.models.mistral4.modeling_mistral4 import Mistral4MLP, Mistral4MoE

    torch.manual_seed(5)
    shape = {**SHAPE, "num_hidden_layers": len(sparse_layers)}
    network = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**shape, num_local_experts=2, num_experts_per_tok=1, sliding_window=window)
    )
    config = transformers.Mistral4Config(
        hidden_size=SHAPE["hidden_size"],
        intermediate_size=SHAPE["intermediate_size"],
        moe_intermediate_size=MOE["expert_hidden_dim"],
        n_routed_experts=MOE["num_experts"],
        num_experts_per_tok=MOE["num_experts_per_tok"],
        n_shared_experts=MOE["num_shared_experts"],
        routed_scaling_factor=MOE["routed_scale"],
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
    )
    config._experts_implementation = "eager"
    for layer, sparse in zip(network.model.layers, sparse_layers, strict=True):
        layer.mlp = Mistral4MoE(config) if sparse else Mistral4MLP(config)
        for parameter in layer.mlp.parameters():
            nn.init.normal_(parameter, std=0.3)
    return network.eval()


def native_names(network: Any) -> dict[str, Tensor]:
    """The weights under the names of native files since Mistral Large 3."""
    given = network.state_dict()
    found = {"tok_embeddings.weight": given["model.embed_tokens.weight"], "norm.weight": given["model.norm.weight"]}
    found["output.weight"] = given["lm_head.weight"]
    for number, layer in enumerate(network.model.layers):
        attention, mlp, prefix = layer.self_attn, layer.mlp, f"layers.{number}"
        found[f"{prefix}.attention_norm.weight"] = layer.input_layernorm.weight
        found[f"{prefix}.ffn_norm.weight"] = layer.post_attention_layernorm.weight
        for name in "qkvo":
            rows = getattr(attention, f"{name}_proj").weight
            found[f"{prefix}.attention.w{name}.weight"] = half_to_adjacent(rows, HEAD_DIM) if name in "qk" else rows
        dense = (
            (f"{prefix}.shared_experts", mlp.shared_experts)
            if hasattr(mlp, "experts")
            else (f"{prefix}.feed_forward", mlp)
        )
        for name, part in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            found[f"{dense[0]}.{name}.weight"] = getattr(dense[1], part).weight
        if not hasattr(mlp, "experts"):
            continue
        found[f"{prefix}.gate.weight"] = mlp.gate.weight
        for expert, (both, down) in enumerate(zip(mlp.experts.gate_up_proj, mlp.experts.down_proj, strict=True)):
            w1, w3 = both.chunk(2)
            for name, matrix in (("w1", w1), ("w2", down), ("w3", w3)):
                found[f"{prefix}.experts.{expert}.{name}.weight"] = matrix
    return {name: tensor.detach().clone() for name, tensor in found.items()}


@pytest.mark.parametrize(
    ("changes", "sparse_layers"),
    [
        ({}, [True, True]),
        ({"first_k_dense_replace": 1}, [False, True, True]),
        ({"first_k_dense_replace": 1, "route_every_n": 2}, [False, False, True]),
    ],
)
@pytest.mark.parametrize("window", [None, 6])
def test_native_sparse_networks_agree_with_transformers(
    changes: dict[str, int], sparse_layers: list[bool], window: int | None, tmp_path: Path
) -> None:
    network = random_network(sparse_layers, window)
    params = {
        "dim": SHAPE["hidden_size"],
        "n_layers": len(sparse_layers),
        "n_heads": SHAPE["num_attention_heads"],
        "n_kv_heads": SHAPE["num_key_value_heads"],
        "head_dim": HEAD_DIM,
        "hidden_dim": SHAPE["intermediate_size"],
        "norm_eps": network.config.rms_norm_eps,
        "rope_theta": network.config.rope_parameters["rope_theta"],
        "vocab_size": SHAPE["vocab_size"],
        "moe": {**MOE, **changes},
    }
    if window is not None:
        params["sliding_window"] = window
    (tmp_path / "params.json").write_text(json.dumps(params))
    save_file(native_names(network), tmp_path / "consolidated.safetensors")
    with torch.no_grad():
        expected = network(torch.tensor([TOKENS])).logits[0]
    driver = Driver(loaded(tmp_path), make("sdpa"), shuffle=0)
    torch.testing.assert_close(driver.whole(TOKENS), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(driver.whole(TOKENS, 7), expected, atol=1e-4, rtol=1e-4)
