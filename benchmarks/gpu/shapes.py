"""Networks and lengths of `benchmarks.gpu`, and the least that a step must read or compute. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from model.config import ModelConfig
from model.linear.schemes import choose

HEAD_BYTES = 2
"""Bytes of a weight of the head, and of a key or value: both are in bfloat16 in every scheme."""
MISTRAL_7B = ModelConfig(
    family="mistral",
    dim=4096,
    n_layers=32,
    n_heads=32,
    n_kv_heads=8,
    head_dim=128,
    hidden_dim=14336,
    vocab_size=32_000,
    norm_eps=1e-5,
    rope_theta=10_000.0,
    max_position=32_768,
    windows=(4096,) * 32,
)
EXPERTS: dict[str, Any] = {"family": "mixtral", "n_experts": 8, "n_experts_per_token": 2}


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of all measurements. Streams decode after prompts of `prompt` tokens.

    The first `warm_up` steps of decoding do not count; the next `tokens` steps count. `prefill` is the length of a long
    prompt. `stream` is a length at which memory must no longer grow. `copy_bytes` and `matrix` (rows and columns) are
    for the two ceilings. `paging` has options of transformers for its pages.
    """

    dense: ModelConfig
    sparse: ModelConfig
    streams: tuple[int, int, int]
    prompt: int
    warm_up: int
    tokens: int
    prefill: int
    stream: int
    step_tokens: int
    repeats: int
    copy_bytes: int
    matrix: int
    paging: Mapping[str, int] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return self.stream + self.warm_up + self.tokens + 64

    @property
    def steady_tokens(self) -> int:
        """Tokens after which the memory of a stream no longer grows: its window and two whole steps."""
        return 2 * self.step_tokens + (self.dense.windows[0] or 0)


FULL = Shapes(
    dense=MISTRAL_7B,
    sparse=replace(MISTRAL_7B, **EXPERTS, rope_theta=1e6, windows=(None,) * 32),
    streams=(1, 64, 256),
    prompt=1024,
    warm_up=16,
    tokens=96,
    prefill=8192,
    stream=200_000,
    step_tokens=8192,
    repeats=5,
    copy_bytes=2**32,
    matrix=8192,
)
_SMALL = replace(
    MISTRAL_7B,
    dim=256,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=64,
    hidden_dim=256,
    vocab_size=512,
    max_position=512,
    windows=(64,) * 2,
)
QUICK = Shapes(
    dense=_SMALL,
    sparse=replace(_SMALL, **EXPERTS, windows=(None,) * 2),
    streams=(1, 3, 5),
    prompt=24,
    warm_up=2,
    tokens=4,
    prefill=160,
    stream=900,
    step_tokens=128,
    repeats=2,
    copy_bytes=2**20,
    matrix=128,
    paging={"num_blocks": 16, "max_batch_tokens": 128},
)


def projections(config: ModelConfig) -> int:
    """Number of weights that multiply each token, without the head. In a sparse network, only chosen experts count."""
    heads = 2 * config.n_heads + 2 * config.n_kv_heads
    feed_forward = (
        3 * config.dim * config.hidden_dim * (config.n_experts_per_token or 1) + config.dim * config.n_experts
    )
    return config.n_layers * (config.dim * config.head_dim * heads + feed_forward)


def decode_bytes(config: ModelConfig, scheme: str, streams: int, context: int) -> float:
    """The least bytes that a step reads: the weights once, and for each stream the keys and values in its window."""
    bits = choose(scheme, "bfloat16", "cuda", compiled=False).bits(config.dim) or 16
    weights = projections(config) * bits / 8 + config.dim * config.vocab_size * HEAD_BYTES
    visible = sum(min(window or context, context) for window in config.windows)
    return weights + streams * visible * 2 * config.n_kv_heads * config.head_dim * HEAD_BYTES


def prefill_flops(config: ModelConfig, length: int) -> float:
    """The least operations for a prompt: each weight for each token, each query with its visible keys, one head row."""
    pairs = sum(_pairs(length, min(window or length, length)) for window in config.windows)
    attention = 4 * config.head_dim * config.n_heads * pairs
    return 2 * projections(config) * length + attention + 2 * config.dim * config.vocab_size


def _pairs(length: int, window: int) -> int:
    """Number of pairs of a query and a visible key. Worked example: 5 tokens, window 3: 1 + 2 + 3 + 3 + 3."""
    return window * (window + 1) // 2 + (length - window) * window
