"""GGUF files of Mistral Small 4, as llama.cpp's converters write them: from native files, and from Hugging Face's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import RopeScalingType
from gguf.quants import dequantize

from model.checkpoint.config import read_config
from model.checkpoint.gguf.open import open_gguf
from model.errors import ModelError
from tests.model.checkpoint.gguf_latent import save
from tests.model.driving import network
from tests.model.network.latent_models import logprobs, mistral4
from tests.model.network.oracles import TOKENS

WIDE = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256, "q_lora_rank": 256}
WIDE |= {"kv_lora_rank": 256, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64}
WIDTHS = {"hidden_size": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
KINDS = [("Q8_0", WIDTHS), ("Q4_0", WIDTHS), ("Q4_K_M", WIDE)]


@pytest.mark.parametrize("architecture", ["deepseek2", "mistral4"])
def test_log_probabilities_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    model = mistral4()
    expected = logprobs(model)
    path = save(model, tmp_path / "m.gguf", architecture)
    found = network(path).whole(TOKENS).log_softmax(-1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("kind", "sizes"), KINDS, ids=[kind for kind, _ in KINDS])
@pytest.mark.parametrize("scheme", ["none", "int4"])
def test_quantized_files_mean_what_the_package_says(
    kind: str, sizes: dict[str, int], scheme: str, tmp_path: Path
) -> None:
    """int4 keeps the blocks; activations of 8 bits are its error."""
    model = mistral4(**sizes)
    path = save(model, tmp_path / "m.gguf", "deepseek2", kind)
    with torch.no_grad():
        meant = reread(path, model)
    found = network(path, scheme).whole(TOKENS).log_softmax(-1)
    difference = (found - logprobs(meant)).abs()
    assert difference.max() < 1e-4 if scheme == "none" else difference.mean() < 0.15


@pytest.mark.parametrize("architecture", ["deepseek2", "mistral4"])
def test_a_long_context_without_yarn_is_named(architecture: str, tmp_path: Path) -> None:
    long = {"numbers": {"context_length": 1_048_576}}
    path = save(mistral4(), tmp_path / "m.gguf", architecture, scaling=RopeScalingType.NONE, **long)
    (doubt,) = open_gguf(path).doubts
    assert doubt.startswith("m.gguf has a context of 1048576 tokens without the keys of YaRN: ")
    assert not open_gguf(save(mistral4(), tmp_path / "right.gguf", architecture, **long)).doubts


def reread(path: Path, model: Any) -> Any:
    """The model with the weights of the file, decoded by the gguf package."""
    from gguf import GGUFReader

    found = {tensor.name: tensor for tensor in GGUFReader(path).tensors}

    def weights(name: str) -> torch.Tensor:
        tensor = found[name]
        shape = [int(size) for size in tensor.shape[::-1]]
        return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).reshape(shape).copy())

    state = model.state_dict()
    state["model.embed_tokens.weight"], state["lm_head.weight"] = weights("token_embd.weight"), weights("output.weight")
    theirs = {
        "q_a_proj": "attn_q_a",
        "q_b_proj": "attn_q_b",
        "kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "o_proj": "attn_output",
    }
    for layer, block in enumerate(model.model.layers):
        own, prefix = f"blk.{layer}.", f"model.layers.{layer}."
        for name, gguf in theirs.items():
            state[f"{prefix}self_attn.{name}.weight"] = weights(f"{own}{gguf}.weight")
        heads = torch.cat((weights(f"{own}attn_k_b.weight").transpose(1, 2), weights(f"{own}attn_v_b.weight")), dim=1)
        state[f"{prefix}self_attn.kv_b_proj.weight"] = heads.flatten(0, 1)
        sparse = hasattr(block.mlp, "experts")
        feed_forward, suffix = ("mlp.shared_experts", "_shexp") if sparse else ("mlp", "")
        for name, gguf in (("gate_proj", "ffn_gate"), ("down_proj", "ffn_down"), ("up_proj", "ffn_up")):
            state[f"{prefix}{feed_forward}.{name}.weight"] = weights(f"{own}{gguf}{suffix}.weight")
        if sparse:
            both = torch.cat([weights(f"{own}ffn_{part}_exps.weight") for part in ("gate", "up")], dim=1)
            state[f"{prefix}mlp.experts.gate_up_proj"] = both
            state[f"{prefix}mlp.experts.down_proj"] = weights(f"{own}ffn_down_exps.weight")
    model.load_state_dict(state)
    return model


def test_the_multiplier_of_yarn_does_not_scale_scores(tmp_path: Path) -> None:
    """llama.cpp multiplies by m squared for a multiplier of 0.1; the model was trained without it."""
    latent = read_config(save(mistral4(), tmp_path / "m.gguf", "deepseek2")).latent
    assert latent is not None
    assert latent.softmax_scale == 20**-0.5
    assert latent.mscale == pytest.approx((1 + 0.1 * np.log(8)) ** 2)


def test_experts_whose_weights_are_not_normed_are_refused(tmp_path: Path) -> None:
    """As in DeepSeek V2."""
    path = save(mistral4(), tmp_path / "m.gguf", "deepseek2", norm=False)
    with pytest.raises(ModelError, match="no expert_weights_norm"):
        read_config(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"floats": {"rope.scaling.attn_factor": 2.0}}, "has 2.0 in rope.scaling.attn_factor, expected 1.0"),
        (
            {"numbers": {"attention.key_length_mla": 8}},
            "has 8 in attention.key_length_mla, expected more than the 8 in",
        ),
        ({"floats": {"attention.scale": 0.5}}, "has 0.5 in attention.scale"),
        ({"floats": {"attention.scale": 1.0}}, "has 1.0 in attention.scale"),
        ({"floats": {"attention.sliding_window": 8.0}}, "has 8.0 in attention.sliding_window, expected 0"),
        ({"tensors": {"rope_freqs.weight": np.ones(4, np.float32)}}, "has rope_freqs.weight, which"),
    ],
)
def test_what_would_change_the_computation_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        read_config(save(mistral4(), tmp_path / "m.gguf", "deepseek2", **changes))
