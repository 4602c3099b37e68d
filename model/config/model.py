"""The configuration of a network. `checkpoint/config.py` reads it from files. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import log
from typing import Literal

from model.config.audio import AudioConfig
from model.config.latent import Heads, LatentConfig
from model.config.vision import VisionConfig
from model.errors import ModelError, OptionError, short
from model.ranges import MAX_SIZE, is_number, is_size

MAX_BLOCKS = 2**15
"""Layers times experts. The largest models have fewer; a damaged file could ask for days of work."""
VALUE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a value in each format that a model can have."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of the rotation frequencies.

    "linear" divides all of them by `factor`. "llama3" divides low frequencies only, with a transition between
    `original_max_position / low_freq_factor` and `original_max_position / high_freq_factor`. "yarn" is that of arXiv
    2309.00071, with the `magnitude` on q and k. "divisors" divides the frequency of each pair by its own number (GGUF's
    `rope_freqs.weight`). "dynamic" (NTK) becomes a theta at load. `truncate` rounds the ends of yarn's ramp to whole
    pairs.
    """

    kind: Literal["linear", "llama3", "yarn", "divisors"]
    factor: float
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for item in fields(self)[1:]:
            value = getattr(self, item.name)
            values = value if item.name == "divisors" else () if value is None else (value,)
            if item.name != "truncate" and not all(is_number(number) and number >= 0 for number in values):
                raise ModelError(f"{item.name} of the RoPE scaling must be a number, it is {short(value)}")
        for name, least in (("factor", 1), ("original_max_position", 1)) if self.kind == "yarn" else (("factor", 1),):
            if getattr(self, name) < least:
                raise ModelError(f"{name} of the RoPE scaling must be at least {least}, it is {getattr(self, name)}")
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise ModelError(
                f"low_freq_factor of the RoPE scaling must be below high_freq_factor, they are {self.low_freq_factor} "
                f"and {self.high_freq_factor}"
            )
        if not isinstance(self.truncate, bool):
            raise ModelError(f"truncate of the RoPE scaling must be true or false, it is {short(self.truncate)}")

    @property
    def magnitude(self) -> float:
        """Return the factor of the cosines and sines, 1 for all kinds but yarn.

        With m(s) = 1 + 0.1 s ln(factor) it is `attention_factor` if given, else m(mscale) / m(mscale_all_dim) if both
        are not 0, else m(1). Worked example: factor 64, mscale 1, mscale_all_dim 0 -> 1 + 0.1 ln 64 = 1.41589.
        """
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.stretched(self.mscale) / self.stretched(self.mscale_all_dim)
        return self.stretched(1.0)

    def stretched(self, scale: float) -> float:
        """Return 1 + 0.1 scale ln(factor)."""
        return 1 + 0.1 * scale * log(max(self.factor, 1.0))


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions of some layers. `dim` values of a head rotate, in pairs; the others do not.

    Of these pairs only the first `fraction` rotates (p-RoPE, arXiv 2410.06205).
    """

    theta: float
    dim: int
    fraction: float = 1.0
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.theta) and self.theta > 1):
            raise ModelError(f"rope_theta must be a number above 1, the checkpoint has {short(self.theta)}")
        if not (is_number(self.fraction) and 0.0 <= self.fraction <= 1.0):
            raise ModelError(f"rope_fraction must be between 0 and 1, got {short(self.fraction)}")


@dataclass(frozen=True, slots=True)
class QueryTemperature:
    """The factor of rotated queries at a position: 1 + beta ln(1 + floor(position / original_max_position)).

    Llama 4's temperature of attention (`llama_4_scaling`). Worked example: original 8192, beta 0.1, positions 8191,
    8192 and 100,000 -> 1, 1.069315 and 1.256495.
    """

    original_max_position: int
    beta: float

    def __post_init__(self) -> None:
        if not is_size(self.original_max_position):
            raise ModelError(
                "original_max_position_embeddings of the query temperature (llama_4_scaling) must be at least 1, "
                f"the checkpoint has {short(self.original_max_position)}"
            )
        if not (is_number(self.beta) and self.beta >= 0):
            raise ModelError(
                f"beta of the query temperature (llama_4_scaling) must be a number of at least 0, "
                f"the checkpoint has {short(self.beta)}"
            )


@dataclass(frozen=True, slots=True)
class StageConfig:
    """Layers that are some of a model's: the number of the first, and the page pools of the whole model."""

    first_layer: int
    pool_windows: tuple[int | None, ...]


_EXPERT_COUNTS = {"expert_hidden_dim": 0, "n_shared_experts": 0, "first_k_dense_replace": 0, "route_every_n": 1}
"""The least values of the fields about experts."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of a network, with the names of the papers and of `params.json`.

    `windows` has one entry for each layer: a token attends to itself and the `window - 1` tokens before it; None is
    full attention. `rope_dim` values of a head rotate, all of them for None. `full_rope` is the RoPE of the layers
    without a window where it is not that of the others. With `latent` sizes the attention is latent. `n_experts` 0 is a
    dense feed-forward block in every layer, otherwise `is_sparse` says which layers have experts. They have
    `expert_hidden_dim` (0: `hidden_dim`), and the gate's weights are multiplied by `routed_scale`. `max_position` is
    the context in tokens: the trained one, or the part of a dynamic RoPE scaling's that is served. `dtype` is the
    checkpoint's: "bfloat16", "float16" or "float32". `vision` is the image encoder, `audio` the audio encoder; a model
    has at most one. `stage` says which layers these are, if they are only some of a model's; None for all.

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
    rope_dim: int | None = None
    full_rope: Rope | None = None
    query_temperature: QueryTemperature | None = None
    latent: LatentConfig | None = None
    n_experts: int = 0
    n_experts_per_token: int = 0
    expert_hidden_dim: int = 0
    n_shared_experts: int = 0
    routed_scale: float = 1.0
    first_k_dense_replace: int = 0
    route_every_n: int = 1
    tied_head: bool = False
    dtype: str = "bfloat16"
    vision: VisionConfig | None = None
    audio: AudioConfig | None = None
    stage: StageConfig | None = None

    def __post_init__(self) -> None:
        sizes = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "max_position")
        for name in (*sizes, *(("n_experts", "n_experts_per_token") if self.n_experts else ())):
            if not is_size(value := getattr(self, name)):
                raise ModelError(f"{name} must be at least 1 and at most {MAX_SIZE}, the checkpoint has {short(value)}")
        for name in ("norm_eps", "routed_scale"):
            if not (is_number(value := getattr(self, name)) and value > 0):
                raise ModelError(f"{name} must be a number above 0, the checkpoint has {short(value)}")
        if self.vision is not None and self.audio is not None:
            raise ModelError("the model has an encoder of images and one of audio; Noria supports one of them")
        self._check_heads_and_experts()
        self._check_ropes()
        self._check_windows()

    def _check_heads_and_experts(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ModelError(f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads})")
        if self.head_dim % 2 and self.latent is None:
            raise ModelError(f"head_dim must be even for rotary positions, the checkpoint has {self.head_dim}")
        if self.n_layers * max(1, self.n_experts) > MAX_BLOCKS:
            raise ModelError(f"{self.n_layers} layers of {self.n_experts} experts are more than {MAX_BLOCKS} blocks")
        if self.n_experts:
            self._check_experts()

    def _check_experts(self) -> None:
        if self.n_experts_per_token > self.n_experts:
            raise ModelError(f"n_experts_per_token must be 1 to {self.n_experts}, got {self.n_experts_per_token}")
        for name, least in _EXPERT_COUNTS.items():
            value = getattr(self, name)
            if value != least and not is_size(value):
                raise ModelError(f"{name} must be at least {least} and at most {MAX_SIZE}, it is {short(value)}")
        if self.first_k_dense_replace >= self.n_layers and self.stage is None:
            raise ModelError(
                f"first_k_dense_replace must be below n_layers ({self.n_layers}), it is {self.first_k_dense_replace}"
            )

    def _check_ropes(self) -> None:
        for rope in {self.rope, self.full_rope or self.rope}:
            if not (is_size(rope.dim) and rope.dim % 2 == 0 and rope.dim <= self.head_dim):
                raise ModelError(
                    f"RoPE must rotate an even number of a head's {self.head_dim} values, the checkpoint rotates "
                    f"{short(rope.dim)}"
                )
        if self.full_rope is not None and self.full_rope.dim != self.rope.dim:
            raise ModelError(
                f"RoPE rotates {self.rope.dim} values of a head in one type of layer and {self.full_rope.dim} in "
                "another; Noria supports one number for all layers"
            )

    def _check_windows(self) -> None:
        if len(self.windows) != self.n_layers:
            raise ModelError(f"windows must have one entry for each of {self.n_layers} layers, got {len(self.windows)}")
        for window in set(self.windows):
            if window is not None and not is_size(window):
                raise ModelError(f"a sliding window must be at least 1, got {short(window)}")

    @property
    def pool_windows(self) -> tuple[int | None, ...]:
        """Return the distinct windows, one page pool each, in order of first appearance in the whole model."""
        return tuple(dict.fromkeys(self.windows)) if self.stage is None else self.stage.pool_windows

    @property
    def rope(self) -> Rope:
        """Return the RoPE of the layers with a window, and of the others if they have no `full_rope`."""
        dim = self.head_dim if self.rope_dim is None else self.rope_dim
        return Rope(self.rope_theta, dim, self.rope_fraction, self.rope_scaling)

    @property
    def pool_ropes(self) -> tuple[Rope, ...]:
        """Return the RoPE of each page pool, in the order of `pool_windows`."""
        full = self.full_rope or self.rope
        return tuple(full if window is None else self.rope for window in self.pool_windows)

    @property
    def heads(self) -> Heads:
        """Return the heads of attention over the cache."""
        if self.latent is None:
            return Heads(self.n_heads, self.n_kv_heads, self.head_dim)
        return Heads(self.n_heads, 1, self.latent.cache_dim, self.latent.kv_lora_rank)

    @property
    def query_scale(self) -> float:
        """Return the factor of rotated queries; backends also scale scores by 1 / sqrt(heads.head_dim)."""
        return 1.0 if self.latent is None else self.latent.softmax_scale * self.heads.head_dim**0.5

    @property
    def attended_dim(self) -> int:
        """Return how many values attention gives for a token, before its last projection."""
        return self.n_heads * (self.head_dim if self.latent is None else self.latent.v_head_dim)

    def with_softmax_scale(self, name: str) -> "ModelConfig":
        """Return the configuration with the scale of scores that --softmax-scale names: "base" or "yarn".

        "auto" keeps its own. Raises OptionError for a model that has only one scale.
        """
        if name == "auto":
            return self
        if self.latent is None:
            raise OptionError(f"--softmax-scale {name} is for models with latent attention; leave it out")
        if name == "yarn" and self.latent.mscale == 1.0:
            raise OptionError("--softmax-scale yarn: the model's files ask for no other scale than base; leave it out")
        return replace(self, latent=replace(self.latent, scaled=name == "yarn"))

    def with_window(self, window: int | None) -> "ModelConfig":
        """Return the configuration with `window` in every layer; with its own windows for None.

        Raises OptionError if layers differ in their RoPE, which belongs to the window.
        """
        if window and self.full_rope is not None:
            raise OptionError(
                f"--sliding-window {window} gives all layers one window, but the model's layers with and without a "
                "window have different RoPE; start without --sliding-window"
            )
        if not window:
            return self
        stage = replace(self.stage, pool_windows=(window,)) if self.stage else None
        return replace(self, windows=(window,) * self.n_layers, stage=stage)

    def is_sparse(self, layer: int) -> bool:
        """Return whether the layer has experts: each `route_every_n`-th one after the first `first_k_dense_replace`."""
        layer += self.stage.first_layer if self.stage else 0
        return bool(self.n_experts) and layer >= self.first_k_dense_replace and layer % self.route_every_n == 0

    @property
    def expert_dim(self) -> int:
        """Return the hidden size of an expert."""
        return self.expert_hidden_dim or self.hidden_dim

    @property
    def shared_dim(self) -> int:
        """Return the hidden size of the shared experts, which are one feed-forward; 0 if there are none."""
        return self.n_shared_experts * self.expert_dim

    @property
    def n_parameters(self) -> int:
        """Count the weights, those of the encoder included."""
        return self.n_text_parameters + (self.encoder.n_parameters(self.dim) if self.encoder else 0)

    @property
    def encoder(self) -> VisionConfig | AudioConfig | None:
        """Return the encoder of images or audio, None for a model of text."""
        return self.vision or self.audio

    @property
    def n_text_parameters(self) -> int:
        """Count the weights of the text model, the tied head once. Mistral 7B: 7,241,732,096."""
        embeddings = self.vocab_size * self.dim * (1 if self.tied_head else 2)
        return sum(map(self.layer_parameters, range(self.n_layers))) + self.dim + embeddings

    def layer_parameters(self, layer: int) -> int:
        """Count the weights of a layer."""
        attention = self.dim * self.head_dim * (2 * self.n_heads + 2 * self.n_kv_heads)
        if self.latent is not None:
            attention = self.latent.n_parameters(self.dim, self.n_heads)
        sparse = self._expert_parameters + self.dim * self.n_experts
        return attention + 2 * self.dim + (sparse if self.is_sparse(layer) else 3 * self.dim * self.hidden_dim)

    @property
    def _expert_parameters(self) -> int:
        """Count the weights of a sparse layer's experts, the shared ones too."""
        return 3 * self.dim * (self.expert_dim * self.n_experts + self.shared_dim)

    @property
    def expert_share(self) -> float:
        """Return the share of the layers' weights that experts have."""
        layers = range(self.n_layers)
        return sum(map(self.is_sparse, layers)) * self._expert_parameters / sum(map(self.layer_parameters, layers))

    @property
    def n_active_parameters(self) -> int:
        """Count the weights of the text model that multiply one token, without the output head."""
        n_sparse = sum(map(self.is_sparse, range(self.n_layers)))
        idle = n_sparse * 3 * self.dim * self.expert_dim * (self.n_experts - self.n_experts_per_token)
        return self.n_text_parameters - self.vocab_size * self.dim * (1 if self.tied_head else 2) - idle
