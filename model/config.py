"""The configuration of a network. `checkpoint/families.py` reads it from files. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Literal

from model.errors import ModelError, short

MAX_SIZE = 2**31 - 1
MAX_BLOCKS = 2**15
"""Layers times experts. The largest models have fewer; a damaged file could ask for days of work."""
VALUE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a value in each format that a model can have."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of the rotation frequencies.

    "linear" divides all of them by `factor`. "llama3" divides low frequencies only, with a transition between
    `original_max_position / low_freq_factor` and `original_max_position / high_freq_factor`. "yarn" is that of arXiv
    2309.00071, with `attention_factor` on q and k (None: 0.1 ln(factor) + 1). "divisors" divides the frequency of each
    pair by its own number (GGUF's `rope_freqs.weight`). "dynamic" (NTK) becomes a theta at load.
    """

    kind: Literal["linear", "llama3", "yarn", "divisors"]
    factor: float
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for item in fields(self)[1:]:
            value = getattr(self, item.name)
            values = value if item.name == "divisors" else () if value is None else (value,)
            if not all(_is_number(number) and number >= 0 for number in values):
                raise ModelError(f"{item.name} of the RoPE scaling must be a number, it is {short(value)}")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of a network, with the names of the papers and of `params.json`.

    `windows` has one entry for each layer: a token attends to itself and the `window - 1` tokens before it; None is
    full attention. `n_experts` 0 is a dense feed-forward block. `max_position` is the context in tokens: the trained
    one, or the part of a dynamic RoPE scaling's that is served. `dtype` is the checkpoint's: "bfloat16", "float16" or
    "float32".

    Raises ModelError for impossible values.
    """

    family: str
    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_dim: int
    vocab_size: int
    norm_eps: float
    rope_theta: float
    max_position: int
    windows: tuple[int | None, ...]
    rope_fraction: float = 1.0
    rope_scaling: RopeScaling | None = None
    n_experts: int = 0
    n_experts_per_token: int = 0
    tied_head: bool = False
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        sizes = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "max_position")
        for name in (*sizes, *(("n_experts", "n_experts_per_token") if self.n_experts else ())):
            if not _is_size(value := getattr(self, name)):
                raise ModelError(f"{name} must be at least 1 and at most {MAX_SIZE}, the checkpoint has {short(value)}")
        for name, least in (("norm_eps", 0), ("rope_theta", 1)):
            if not (_is_number(value := getattr(self, name)) and value > least):
                raise ModelError(f"{name} must be a number above {least}, the checkpoint has {short(value)}")
        if not 0.0 <= self.rope_fraction <= 1.0:
            raise ModelError(f"rope_fraction must be between 0 and 1, got {self.rope_fraction}")
        self._check_heads_and_experts()
        self._check_windows()

    def _check_heads_and_experts(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ModelError(f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads})")
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even for rotary positions, the checkpoint has {self.head_dim}")
        if self.n_layers * max(1, self.n_experts) > MAX_BLOCKS:
            raise ModelError(f"{self.n_layers} layers of {self.n_experts} experts are more than {MAX_BLOCKS} blocks")
        if self.n_experts and self.n_experts_per_token > self.n_experts:
            raise ModelError(f"n_experts_per_token must be 1 to {self.n_experts}, got {self.n_experts_per_token}")

    def _check_windows(self) -> None:
        if len(self.windows) != self.n_layers:
            raise ModelError(f"windows must have one entry for each of {self.n_layers} layers, got {len(self.windows)}")
        for window in set(self.windows):
            if window is not None and not _is_size(window):
                raise ModelError(f"a sliding window must be at least 1, got {short(window)}")

    @property
    def pool_windows(self) -> tuple[int | None, ...]:
        """The distinct windows, one page pool each, in order of first appearance."""
        return tuple(dict.fromkeys(self.windows))

    def with_window(self, window: int | None) -> "ModelConfig":
        """The same configuration with `window` in every layer; with its own windows for None."""
        return replace(self, windows=(window,) * self.n_layers) if window else self

    @property
    def n_parameters(self) -> int:
        """Number of weights, the tied head counted once. Mistral 7B: 7,241,732,096."""
        attention = self.dim * self.head_dim * (2 * self.n_heads + 2 * self.n_kv_heads)
        feed_forward = 3 * self.dim * self.hidden_dim * max(self.n_experts, 1) + self.dim * self.n_experts
        embeddings = self.vocab_size * self.dim * (1 if self.tied_head else 2)
        return self.n_layers * (attention + feed_forward + 2 * self.dim) + self.dim + embeddings


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and 1 <= value <= MAX_SIZE
