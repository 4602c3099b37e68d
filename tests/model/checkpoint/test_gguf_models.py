"""Random networks of transformers as GGUF files in F32: every position's log probabilities within 1e-4.

The metadata is what llama.cpp's converter writes for such a model.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, RopeScalingType
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from model.checkpoint.config import read_config
from service.generation.startup import load_text_side
from tests.model.checkpoint.gguf_files import SIZES, VOCAB, new_file, store
from tests.model.driving import network

LONG = {**SIZES, "initializer_range": 0.2, "max_position_embeddings": 256}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
PROMPT = [(7 * i + i * i) % VOCAB for i in range(150)]


def freq_factors(rope: dict[str, float], head_dim: int) -> np.ndarray:
    """What llama.cpp's converter writes to `rope_freqs.weight` for RoPE of kind llama3."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        original, low, high = (
            rope[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def llama3(writer: GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", freq_factors(LLAMA3, 8))


def yarn(writer: GGUFWriter) -> None:
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(YARN["factor"])
    writer.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(YARN["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(YARN["beta_slow"])


def yarn_without_scale(writer: GGUFWriter) -> None:
    yarn(writer)
    writer.add_rope_scaling_yarn_log_mul(1.0)


def temperature(writer: GGUFWriter) -> None:
    """Ministral 3, as llama.cpp's converter writes it: the temperature's length is that of YaRN."""
    yarn_without_scale(writer)
    writer.add_attn_temperature_scale(0.1)


def part_of_a_head(writer: GGUFWriter) -> None:
    writer.add_rope_dimension_count(4)


def half_rotated() -> torch.nn.Module:
    """A model that rotates the first 4 of a head's 8 values: in the file these are pairs 0 and 1, the others stand."""
    original = LlamaForCausalLM(LlamaConfig(**LONG))
    original.model.rotary_emb.inv_freq = torch.tensor([1.0, 10_000 ** (-2 / 4), 0.0, 0.0])
    return original


def alternating_windows(writer: GGUFWriter) -> None:
    window(writer)
    writer.add_sliding_window_pattern(2)


def experts(writer: GGUFWriter) -> None:
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)


def wide_heads(writer: GGUFWriter) -> None:
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_rope_dimension_count(16)


def window(writer: GGUFWriter) -> None:
    writer.add_sliding_window(24)


CASES: dict[str, tuple[str, Callable[[], torch.nn.Module], Callable[[GGUFWriter], None]]] = {
    "llama": ("llama", lambda: LlamaForCausalLM(LlamaConfig(**LONG)), lambda _: None),
    "llama tied": ("llama", lambda: LlamaForCausalLM(LlamaConfig(**LONG, tie_word_embeddings=True)), lambda _: None),
    "llama 3": ("llama", lambda: LlamaForCausalLM(LlamaConfig(**LONG, rope_parameters=LLAMA3)), llama3),
    "mistral with a window": ("llama", lambda: MistralForCausalLM(MistralConfig(**LONG, sliding_window=24)), window),
    "head_dim is not dim / n_heads": (
        "llama",
        lambda: MistralForCausalLM(MistralConfig(**LONG, head_dim=16, sliding_window=None)),
        wide_heads,
    ),
    "part of a head": ("llama", half_rotated, part_of_a_head),
    "mixtral": (
        "llama",
        lambda: MixtralForCausalLM(
            MixtralConfig(
                **LONG,
                num_local_experts=4,
                num_experts_per_tok=2,
                rope_parameters={"rope_type": "default", "rope_theta": 1e4},
            )
        ),
        experts,
    ),
    "ministral 3": (
        "mistral3",
        lambda: Ministral3ForCausalLM(
            Ministral3Config(
                **LONG,
                head_dim=8,
                rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
            )
        ),
        temperature,
    ),
    "ministral": (
        "llama",
        lambda: MinistralForCausalLM(
            MinistralConfig(**LONG, head_dim=8, sliding_window=24, layer_types=["sliding_attention", "full_attention"])
        ),
        alternating_windows,
    ),
    "yarn with its scale": (
        "mistral3",
        lambda: MistralForCausalLM(MistralConfig(**LONG, sliding_window=None, rope_parameters=YARN)),
        yarn,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    architecture, build, metadata = CASES[name]
    torch.manual_seed(0)
    original = build().eval()
    writer = new_file(tmp_path / "model.gguf", architecture)
    metadata(writer)
    store(original, writer)
    with torch.no_grad():
        expected = original(torch.tensor(PROMPT)[None]).logits[0].log_softmax(dim=1)
    served = network(tmp_path / "model.gguf")
    for chunk in (len(PROMPT), 7, 24):
        found = served.whole(PROMPT, chunk=chunk).log_softmax(dim=1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_the_scale_of_yarn_is_what_the_file_says(tmp_path: Path) -> None:
    """Magnitudes by hand: 1 + 0.1 ln 8 = 1.207944; a multiplier of 1 cancels it, 0.5 leaves 1.207944 / 1.103972."""
    expected = {None: 1.207944, 0.0: 1.207944, 1.0: 1.0, 0.5: 1.094180}
    for multiplier, scale in expected.items():
        path = tmp_path / f"{multiplier}.gguf"
        writer = new_file(path, "mistral3")
        yarn(writer)
        if multiplier is not None:
            writer.add_rope_scaling_yarn_log_mul(multiplier)
        store(LlamaForCausalLM(LlamaConfig(**SIZES)), writer)
        scaling = read_config(path).rope_scaling
        assert scaling is not None
        assert scaling.magnitude == pytest.approx(scale, abs=1e-6)
        assert (scaling.beta_fast, scaling.beta_slow) == (4.0, 1.0)


LONG_CONTEXT, SHORT_CONTEXT = 262_144, 131_072


@pytest.mark.parametrize(
    ("architecture", "metadata", "context", "fault"),
    [
        ("mistral3", yarn, LONG_CONTEXT, "has YaRN without rope.scaling.yarn_log_multiplier"),
        ("mistral3", lambda _: None, LONG_CONTEXT, "has a context of 262144 tokens without the keys of YaRN"),
        ("mistral3", lambda _: None, SHORT_CONTEXT, None),  # Small 3.2
        ("mistral3", yarn_without_scale, LONG_CONTEXT, None),
        ("mistral3", temperature, LONG_CONTEXT, None),
        ("llama", yarn, LONG_CONTEXT, None),
        ("llama", lambda _: None, LONG_CONTEXT, None),
    ],
)
def test_conversions_that_are_known_to_be_wrong_are_named(
    architecture: str, metadata: Callable[[GGUFWriter], None], context: int, fault: str | None, tmp_path: Path
) -> None:
    writer = new_file(tmp_path / "model.gguf", architecture)
    writer.kv_data[0][f"{architecture}.context_length"].value = context
    metadata(writer)
    store(LlamaForCausalLM(LlamaConfig(**SIZES)), writer)
    found = load_text_side(tmp_path / "model.gguf", None).doubts
    remedy = "the file was converted wrongly; get a newer one"
    assert found == (() if fault is None else (f"model.gguf {fault}: {remedy}",))
