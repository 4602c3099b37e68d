"""Latent attention in bfloat16 beside experts in NVFP4, as Mistral Small 4 is published, in both kinds of files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoint.open import open_checkpoint
from model.kernels.cpu import native
from model.kernels.cpu.records import FORMATS
from model.loading import load_from
from model.memory.plan import make_plan
from model.options import RunnerOptions
from tests.model.attention.attending import best, make
from tests.model.driving import Driver, loaded, storages
from tests.model.network.latent_fp4 import CONFIG, round_experts, save_native, stored
from tests.model.network.latent_models import PARTS, logprobs, mistral4
from tests.model.network.oracles import TOKENS

SIZES = {"hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128, "q_lora_rank": 256}
SIZES |= {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64}
"""Whole groups of channels: the plan does not count what fills others."""


def save_linear(model: Any, directory: Path) -> None:
    """Each expert has layers of its own, which tools that quantize make of packed ones."""
    found = {name: weight.bfloat16() for name, weight in model.state_dict().items()}
    found = {name: weight for name, weight in found.items() if ".mlp." not in name or "mlp.gate." in name}
    theirs = {native: name for name, native in PARTS.items()}
    for name, part in stored(model).items():
        if match := re.fullmatch(r"layers\.(\d+)\.(?:feed_forward\.)?(.*?)(w[123])\.(\w+)", name):
            layer, where, matrix, role = match.groups()
            found[f"model.layers.{layer}.mlp.{where}{theirs[matrix]}.{role}"] = part
    config = json.loads(model.config.to_json_string()) | {"quantization_config": CONFIG, "dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, directory / "model.safetensors")


@pytest.mark.parametrize("save", [save_native, save_linear])
def test_log_probabilities_are_those_of_the_dequantized_weights(save: Any, tmp_path: Path) -> None:
    model = mistral4(**SIZES)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".mlp." not in name or "mlp.gate." in name:
                parameter.copy_(parameter.bfloat16())
        round_experts(model)
        save(model, tmp_path)
    wanted = logprobs(model)
    found = Driver(loaded(tmp_path), make("sdpa")).whole(TOKENS).log_softmax(-1)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    if native.kernels() is not None:
        check_served(tmp_path, wanted)


def check_served(directory: Path, wanted: Tensor) -> None:
    """The compiled kernels keep every matrix of the feed-forward, and the plan knows its bytes."""
    options = RunnerOptions(str(directory), device="cpu", cache_memory=2**22, max_step_tokens=64, max_sequences=2)
    runner = load_from(open_checkpoint(directory), options, lambda *_: None)
    model: Any = runner.head.model
    sparse = model.layers[1].feed_forward
    for block in (model.layers[0].feed_forward, *sparse.experts, sparse.shared_experts):
        assert {FORMATS[part.packed.record.format] for part in (block.w13, block.w2)} == {"nvfp4"}
    plan = make_plan(directory, options, 2**30)
    assert plan.stored == "fp4, others as int8"
    assert storages(model) == pytest.approx(plan.weights, rel=0.03)
    driver = Driver(model, best())
    logits = driver.whole(TOKENS)
    assert torch.nn.functional.cosine_similarity(logits.log_softmax(-1), wanted).median() > 0.98
    assert torch.equal(driver.whole(TOKENS, chunk=7), logits)
