"""Small models of each kind that a GPU computes in its own way."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from model.config.latent import LatentConfig
from model.loading import load_from
from model.options import RunnerOptions
from model.step.runner import ModelRunner
from tests.model.driving import checkpoint, tiny


class Kind(NamedTuple):
    """What differs from a dense model in its own format: the configuration and the options."""

    changes: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}


BASE = {"head_dim": 32, "dim": 256, "hidden_dim": 256, "vocab_size": 512}
EXPERTS = {"n_experts": 4, "n_experts_per_token": 2}
LATENT = {"n_heads": 4, "n_kv_heads": 4, "latent": LatentConfig(64, 64, 16, 16, 32), "rope_dim": 16}
KINDS = {
    "dense": Kind(),
    "fp8": Kind(options={"quantize": "fp8"}),
    "int4": Kind(options={"quantize": "int4"}),
    "deterministic": Kind(options={"deterministic": True}),
    "experts": Kind(EXPERTS),
    "experts, fp8": Kind(EXPERTS, {"quantize": "fp8"}),
    "latents": Kind(LATENT),
    "fp8 keys": Kind(options={"kv_dtype": "fp8"}),
}


def load(kind: str = "dense") -> ModelRunner:
    changes, options = KINDS[kind]
    windows = (None, None) if "latent" in changes else (37, None)
    limits = {"dtype": "bfloat16", "max_sequences": 8, "max_step_tokens": 64, "cache_memory": 2**25, **options}
    made = RunnerOptions("", device="cuda", **limits)
    return load_from(checkpoint(tiny(windows, **BASE, **changes)), made, lambda stage, done: None)
