"""The configuration of an image encoder. `checkpoint/configs/vision.py` reads it from files. No torch."""

from dataclasses import dataclass

from model.errors import ModelError, short
from model.ranges import MAX_SIZE, is_number, is_size

ACTIVATIONS = ("silu", "gelu")
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)
"""Of red, green and blue in CLIP's training data (arXiv 2103.00020); all Pixtral encoders use them."""
MAX_LAYERS = 2**10
MAX_PATCHES = 2**10
"""Patches along a side of an image. Published models have 64 and 110."""


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The image encoder of a model (Pixtral, arXiv 2410.07073), and what joins it to the text model.

    Square patches of `patch_size` pixels become vectors [dim]. `n_layers` blocks of attention and a gated feed-forward
    follow, with rotary positions in two dimensions. `hidden_act` is the gate's activation; published models have silu.
    The adapter makes one vector of `merge` x `merge` patches: with `adapter_norm` an RMSNorm, with `merge` above 1 a
    projection, then linear, GELU, linear, with `adapter_bias` or without. An image whose longer side has more than
    `image_size` pixels is made smaller.

    Raises ModelError for impossible values.
    """

    dim: int
    n_layers: int
    n_heads: int
    head_dim: int
    hidden_dim: int
    patch_size: int
    image_size: int
    n_channels: int = 3
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    merge: int = 1
    adapter_norm: bool = False
    adapter_bias: bool = False
    hidden_act: str = "silu"

    def __post_init__(self) -> None:
        self._check_sizes()
        for name, above in (("rope_theta", 1), ("norm_eps", 0)):
            if not (is_number(value := getattr(self, name)) and value > above):
                raise ModelError(f"{name} of the image encoder must be a number above {above}, it is {short(value)}")
        if self.hidden_act not in ACTIVATIONS:
            raise ModelError(
                f"hidden_act of the image encoder must be {' or '.join(ACTIVATIONS)}, it is {short(self.hidden_act)}"
            )
        if self.image_size < self.token_side or self.image_size // self.patch_size > MAX_PATCHES:
            raise ModelError(
                f"image_size of the image encoder must be {self.token_side} (patch_size {self.patch_size} x merge "
                f"{self.merge}) to {MAX_PATCHES * self.patch_size}, it is {self.image_size}"
            )

    def _check_sizes(self) -> None:
        sizes = ("dim", "n_layers", "n_heads", "head_dim", "hidden_dim", "patch_size", "image_size", "merge")
        for name in sizes:
            if not is_size(value := getattr(self, name)):
                raise ModelError(f"{name} of the image encoder must be 1 to {MAX_SIZE}, it is {short(value)}")
        if self.n_layers > MAX_LAYERS:
            raise ModelError(f"n_layers of the image encoder must be at most {MAX_LAYERS}, it is {self.n_layers}")
        if self.n_channels != 3:
            raise ModelError(f"n_channels of the image encoder must be 3 (RGB), it is {short(self.n_channels)}")
        if self.head_dim % 4:
            raise ModelError(
                "head_dim of the image encoder must be a multiple of 4 for rotary positions in two dimensions, "
                f"it is {self.head_dim}"
            )

    @property
    def token_side(self) -> int:
        """Return the pixels of a side of the square that one token stands for."""
        return self.patch_size * self.merge

    @property
    def patch_width(self) -> int:
        """Return how many values a patch has: its pixels in all channels."""
        return self.n_channels * self.patch_size**2

    @property
    def max_tokens(self) -> int:
        """Return the embeddings of the largest image. Worked example: 1540 pixels, patch 14, merge 2: 55 * 55."""
        return (-(-self.image_size // self.token_side)) ** 2

    @property
    def max_patches(self) -> int:
        """Return the patches of the largest image. Worked example: 3025 tokens of 2 x 2 patches: 12,100."""
        return self.max_tokens * self.merge**2

    @property
    def patch_bytes(self) -> int:
        """Return the bytes of the pixels of a patch."""
        return self.patch_width

    @property
    def largest(self) -> str:
        """Name the item that has embeddings of `max_tokens`."""
        return f"one image of {self.image_size} x {self.image_size} pixels"

    def n_parameters(self, dim: int) -> int:
        """Count the weights, for a text model of `dim`. Pixtral 12B: 434,957,312."""
        blocks = self.n_layers * (4 * self.dim * self.n_heads * self.head_dim + 3 * self.dim * self.hidden_dim)
        norms = (2 * self.n_layers + 1 + self.adapter_norm) * self.dim
        merge = self.merge**2 * self.dim**2 if self.merge > 1 else 0
        adapter = merge + (self.dim + dim) * dim + 2 * dim * self.adapter_bias
        return self.patch_width * self.dim + blocks + norms + adapter
