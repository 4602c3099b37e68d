"""Networks and lengths of `benchmarks.gpu`, and the least that a step must read or compute. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from model.config.latent import LatentConfig
from model.config.model import ModelConfig
from model.config.vision import VisionConfig
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
TOWER = VisionConfig(1024, 24, 16, 64, 4096, patch_size=14, image_size=1540, merge=2, adapter_norm=True)
"""The image encoder of Mistral Small 3.1. Pixtral 12B has the same blocks, patches of 16 pixels and no merge."""
SMALL_4 = ModelConfig(
    family="mistral4",
    dim=4096,
    n_layers=2,
    n_heads=32,
    n_kv_heads=32,
    head_dim=128,
    hidden_dim=12_288,
    vocab_size=131_072,
    norm_eps=1e-6,
    rope_theta=10_000.0,
    rope_dim=64,
    latent=LatentConfig(1024, 256, 64, 64, 128),
    max_position=1_048_576,
    windows=(None,) * 2,
    n_experts=128,
    n_experts_per_token=4,
    expert_hidden_dim=2048,
    n_shared_experts=1,
)
"""Two of the 36 layers of Mistral Small 4."""
EXPERTS: dict[str, Any] = {"family": "mixtral", "n_experts": 8, "n_experts_per_token": 2}


class Load(NamedTuple):
    """Requests that keep arriving: a Poisson process of `rate` requests a step, so that all machines meet equal steps.

    Each has a prompt and an answer of so many tokens. The first `settled` steps do not count, then `steps` count. About
    `rate * answer` streams decode at a time, beside `rate * prompt` tokens of prompts.
    """

    rate: float
    prompt: int
    answer: int
    settled: int
    steps: int


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of all measurements. Streams decode after prompts of `prompt` tokens.

    The first `warm_up` steps of decoding do not count; the next `tokens` steps count. `prefill` is the length of a long
    prompt, `long` that of the longest one in the network with `full` attention. `stream` is a length at which memory
    must no longer grow. Of the `adapters` each has this `rank`. The network `seeing` encodes images of `image_side`
    pixels. `copy_bytes` and `matrix` (rows and columns) are for the two ceilings. `paging` has options of transformers
    for its pages.
    """

    dense: ModelConfig
    sparse: ModelConfig
    full: ModelConfig
    seeing: ModelConfig
    streams: tuple[int, int, int]
    prompt: int
    warm_up: int
    tokens: int
    prefill: int
    long: int
    stream: int
    load: Load
    adapters: int
    rank: int
    image_side: int
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
    full=replace(MISTRAL_7B, rope_theta=1e6, windows=(None,) * 32, max_position=131_072),
    seeing=replace(MISTRAL_7B, n_layers=1, windows=(4096,), vision=TOWER),
    streams=(1, 64, 256),
    prompt=1024,
    warm_up=16,
    tokens=96,
    prefill=8192,
    long=120_000,
    stream=200_000,
    load=Load(0.5, 512, 128, 192, 256),
    adapters=8,
    rank=16,
    image_side=1036,
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
    full=replace(_SMALL, windows=(None,) * 2),
    seeing=replace(
        _SMALL, n_layers=1, windows=(64,), vision=replace(TOWER, dim=64, n_layers=1, n_heads=1, hidden_dim=64)
    ),
    streams=(1, 3, 5),
    prompt=24,
    warm_up=2,
    tokens=4,
    prefill=160,
    long=300,
    stream=900,
    load=Load(0.5, 12, 6, 10, 12),
    adapters=2,
    rank=4,
    image_side=56,
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


def decode_bytes(config: ModelConfig, scheme: str, contexts: Sequence[int]) -> float:
    """The least bytes that a step reads: the weights once, and the visible keys and values of each stream's context."""
    bits = choose(scheme, "bfloat16", "cuda", compiled=False).bits(config.dim) or 16
    weights = projections(config) * bits / 8 + config.dim * config.vocab_size * HEAD_BYTES
    visible = sum(min(window or context, context) for window in config.windows for context in contexts)
    return weights + visible * 2 * config.n_kv_heads * config.head_dim * HEAD_BYTES


def adapter_bytes(config: ModelConfig, rank: int) -> float:
    """Bytes of an adapter of this rank for all projections, in bfloat16. Those of a layer are q, k, v, o and three."""
    q, kv, dim, hidden = (
        config.n_heads * config.head_dim,
        config.n_kv_heads * config.head_dim,
        config.dim,
        config.hidden_dim,
    )
    widths = (dim, q), (dim, kv), (dim, kv), (q, dim), (dim, hidden), (dim, hidden), (hidden, dim)
    return config.n_layers * rank * sum(map(sum, widths)) * 2


def step_flops(config: ModelConfig, tokens: int, sampled: int) -> float:
    """The least operations for so many tokens, of which `sampled` need the head; those of attention do not count."""
    return 2 * projections(config) * tokens + 2 * config.dim * config.vocab_size * sampled


def image_flops(config: ModelConfig, n_patches: int) -> float:
    """The least operations for an image: every patch with each weight of the encoder's blocks, and with every patch."""
    tower = config.vision
    assert tower is not None, "the network has no image encoder"
    weights = 4 * tower.dim * tower.n_heads * tower.head_dim + 3 * tower.dim * tower.hidden_dim
    return tower.n_layers * n_patches * (2 * weights + 4 * tower.n_heads * tower.head_dim * n_patches)


def prefill_flops(config: ModelConfig, length: int) -> float:
    """The least operations for a prompt: each weight for each token, each query with its visible keys, one head row."""
    pairs = sum(_pairs(length, min(window or length, length)) for window in config.windows)
    attention = 4 * config.head_dim * config.n_heads * pairs
    return step_flops(config, length, 1) + attention


def _pairs(length: int, window: int) -> int:
    """Number of pairs of a query and a visible key. Worked example: 5 tokens, window 3: 1 + 2 + 3 + 3 + 3."""
    return window * (window + 1) // 2 + (length - window) * window
