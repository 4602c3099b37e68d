"""A sparse model whose experts are in NVFP4, and all other weights in bfloat16, as Mistral Small 4 is published."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM

from model.checkpoint.open import open_checkpoint
from model.checkpoint.quantized.config import Fp4
from model.kernels.cpu import native
from model.kernels.cpu.records import FORMATS
from model.loading import load_from
from model.memory.plan import make_plan
from model.options import RunnerOptions
from tests.model.attention.attending import best
from tests.model.checkpoint.quantized_files import CT_NVFP4, FORMS
from tests.model.driving import Driver, network, storages

TOKENS = [(7 * i + 3) % 64 for i in range(40)]
DIM, HIDDEN, EXPERTS = 128, 64, 4
IGNORED = ["lm_head", "re:.*self_attn.*", "re:.*gate$"]
CONFIG = MixtralConfig(
    vocab_size=64,
    hidden_size=DIM,
    intermediate_size=HIDDEN,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=EXPERTS,
    num_experts_per_tok=2,
    max_position_embeddings=128,
    tie_word_embeddings=False,
    sliding_window=None,
)


def expert_weights(random: np.random.Generator, layer: Any, name: str) -> dict[str, Tensor]:
    """The tensors of the experts of a layer, which get the weights that these mean."""
    found = {}
    for number in range(EXPERTS):
        gate_up, down = layer.mlp.experts.gate_up_proj.data[number], layer.mlp.experts.down_proj.data[number]
        for part, target in (("w1", gate_up[:HIDDEN]), ("w3", gate_up[HIDDEN:]), ("w2", down)):
            parts, wanted = CT_NVFP4(random, *target.shape)
            target.copy_(wanted)
            prefix = f"{name}.block_sparse_moe.experts.{number}.{part}"
            found |= {f"{prefix}.{role}": tensor for role, tensor in parts.items()}
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module")
def wanted(directory: Path) -> Tensor:
    """What transformers computes, in float32, of the weights that it writes to the directory."""
    torch.manual_seed(0)
    random, model = np.random.default_rng(0), MixtralForCausalLM(CONFIG).float().eval()
    found = {}
    for name, parameter in model.named_parameters():
        if ".experts." not in name:
            found[name] = (parameter.detach() * (5 if "lm_head" in name or "gate" in name else 1)).bfloat16()
            parameter.data = found[name].float()
    for number, layer in enumerate(model.model.layers):
        found |= expert_weights(random, layer, f"model.layers.{number}")
    quantization = FORMS["ct nvfp4"].config | {"ignore": IGNORED}
    config = json.loads(model.config.to_json_string()) | {"quantization_config": quantization, "dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(found, directory / "model.safetensors")
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([TOKENS])).logits[0]
    return logits.log_softmax(dim=-1)


def test_logprobs_are_those_of_the_dequantized_weights(directory: Path, wanted: Tensor) -> None:
    assert wanted.std() > 0.5
    found = network(directory).whole(TOKENS).log_softmax(dim=-1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.skipif(native.kernels() is None, reason="the schemes need the compiled kernels")
@pytest.mark.parametrize(
    ("quantize", "others"), [("auto", "int8"), ("int8", "int8"), ("int4", "q4_min"), ("none", "bfloat16")]
)
def test_experts_stay_and_others_become_what_quantize_says(
    directory: Path, wanted: Tensor, quantize: str, others: str
) -> None:
    options = RunnerOptions(
        str(directory),
        device="cpu",
        dtype="bfloat16" if quantize == "none" else "auto",  # a processor without its instructions chooses float32
        quantize=quantize,
        cache_memory=2**22,
        max_step_tokens=64,
        max_sequences=2,
    )
    runner = load_from(open_checkpoint(directory), options, lambda *_: None)
    model: Any = runner.head.model
    assert {FORMATS[layer.attention.wqkv.packed.record.format] for layer in model.layers} == {others}
    experts = [expert for layer in model.layers for expert in layer.feed_forward.experts]
    kept = [part.packed for expert in experts for part in (expert.w13, expert.w2)]
    assert {FORMATS[part.record.format] for part in kept} == {"nvfp4"}
    planned = open_checkpoint(directory).own_bits
    assert isinstance(planned, Fp4)
    n_bytes = planned.bits / 8 * len(experts) * 3 * DIM * HIDDEN
    assert sum(part.packed.nbytes + part.scales.nbytes for part in kept) == pytest.approx(n_bytes, rel=1e-12)
    plan = make_plan(directory, options, 2**30)
    scheme = "int4" if others == "q4_min" else others
    assert plan.stored == f"fp4, others as {scheme}"
    assert runner.info.description["checkpoint"] == f"compressed-tensors, nvfp4; served as {plan.stored}"
    assert storages(model) == pytest.approx(plan.weights, rel=0.03)
    driver = Driver(model, best())
    logits = driver.whole(TOKENS)
    assert torch.nn.functional.cosine_similarity(logits.log_softmax(dim=-1), wanted).median() > 0.98
    assert torch.equal(driver.whole(TOKENS, chunk=7), logits)


def test_bits_are_those_of_the_file(directory: Path, wanted: Tensor) -> None:
    """4 bits of a code, 8 of a scale for 16, 32 of a scale an output; the share of the experts without the head."""
    own, attention = 2 * EXPERTS * 3 * DIM * HIDDEN, 2 * (DIM * 128 + 2 * DIM * 64 + 128 * DIM)
    tables = 32 * 2 * EXPERTS * (2 * HIDDEN + DIM) / own
    gates = 2 * EXPERTS * DIM
    assert open_checkpoint(directory).own_bits == Fp4(4.5 + tables, own / (own + attention + gates))
