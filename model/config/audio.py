"""The configuration of an audio encoder. `checkpoint/configs/audio.py` reads it from files. No torch."""

from dataclasses import dataclass

from model.errors import ModelError, short
from model.ranges import MAX_SIZE, is_number, is_size

FRAME_SECONDS = 0.01
"""The time between two frames of the mel spectrum, in all Whisper models."""
STRIDE = 2
"""Frames of a position: the second convolution leaves out every other one."""
POSITIONS = 1500
"""Positions of a chunk of 30 seconds."""
MAX_LAYERS = 2**10


@dataclass(frozen=True, slots=True)
class AudioConfig:
    """The audio encoder of a model (Whisper, arXiv 2212.04356), and what joins it to the text model.

    Two convolutions over frames of `n_mels` values make `n_positions` vectors [dim] of a chunk of audio. `n_layers`
    blocks of attention and a feed-forward follow, with GELU and LayerNorms. `group` positions side by side are a token,
    which linear, GELU, linear bring to the text model's width. With `stores_positions` the file has the vectors that
    are added to the positions, else they are Whisper's sinusoids.

    Raises ModelError for impossible values.
    """

    dim: int
    n_layers: int
    n_heads: int
    hidden_dim: int
    n_mels: int = 128
    n_positions: int = POSITIONS
    group: int = 4
    norm_eps: float = 1e-5
    stores_positions: bool = False

    def __post_init__(self) -> None:
        for name in ("dim", "n_layers", "n_heads", "hidden_dim", "n_mels", "n_positions", "group"):
            if not is_size(value := getattr(self, name)):
                raise ModelError(f"{name} of the audio encoder must be 1 to {MAX_SIZE}, it is {short(value)}")
        if self.n_layers > MAX_LAYERS:
            raise ModelError(f"n_layers of the audio encoder must be at most {MAX_LAYERS}, it is {self.n_layers}")
        if self.dim % self.n_heads or self.head_dim % 2:
            raise ModelError(
                f"dim of the audio encoder must be n_heads times an even number, it is {self.dim} with {self.n_heads} "
                "heads"
            )
        if self.n_positions != POSITIONS or self.n_positions % self.group:
            raise ModelError(
                f"n_positions of the audio encoder must be {POSITIONS}, 30 seconds, a multiple of {self.group}; it is "
                f"{self.n_positions}"
            )
        if not (is_number(self.norm_eps) and self.norm_eps > 0):
            raise ModelError(f"norm_eps of the audio encoder must be a number above 0, it is {short(self.norm_eps)}")

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    @property
    def n_frames(self) -> int:
        """Return the frames of the mel spectrum of a chunk: 3000."""
        return STRIDE * self.n_positions

    @property
    def seconds(self) -> float:
        """Return the length of a chunk: 30.0."""
        return self.n_frames * FRAME_SECONDS

    @property
    def max_tokens(self) -> int:
        """Return the embeddings of a chunk: 375."""
        return self.n_positions // self.group

    @property
    def max_patches(self) -> int:
        """Return the positions of a chunk."""
        return self.n_positions

    @property
    def patch_bytes(self) -> int:
        """Return the bytes of the mel spectrum of a position."""
        return STRIDE * self.n_mels * 4

    @property
    def largest(self) -> str:
        """Name the item that has embeddings of `max_tokens`."""
        return f"{self.seconds:g} seconds of audio"

    def n_parameters(self, dim: int) -> int:
        """Count the weights, for a text model of `dim`. Voxtral Mini 3B: 662,134,784 with its positions."""
        attention, ends = 4 * self.dim**2 + 3 * self.dim, 2 * self.dim * self.hidden_dim + self.hidden_dim + self.dim
        blocks = self.n_layers * (attention + ends + 4 * self.dim)
        convolutions = (self.n_mels + self.dim) * 3 * self.dim + 2 * self.dim
        positions = self.n_positions * self.dim * self.stores_positions
        return convolutions + positions + blocks + 2 * self.dim + (self.group * self.dim + dim) * dim
