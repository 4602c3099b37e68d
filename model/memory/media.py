"""How a model cuts images into tokens, and what its images take. No torch; sizes in bytes."""

from dataclasses import dataclass

from model.config import ModelConfig
from model.errors import MemoryLack, OptionError, size
from model.media import AudioFormat, ImageFormat
from model.options import IMAGE_CACHE, LEAST_IMAGES, RunnerOptions
from model.vision_config import VisionConfig


@dataclass(frozen=True, slots=True)
class MediaSizes:
    """Sizes of one model and its options: the embeddings of encoded images may fill `tokens` positions.

    They take `cache` bytes. The encoding of the largest image takes `encoding` bytes until it is complete.
    """

    format: ImageFormat | AudioFormat
    tokens: int
    cache: int
    encoding: int

    @property
    def n_bytes(self) -> int:
        return self.cache + self.encoding


def media_sizes(config: ModelConfig, options: RunnerOptions, value_bytes: int) -> MediaSizes | None:
    """The sizes for values of `value_bytes`; None for a model without an image encoder.

    Raises OptionError for a --image-cache-memory that holds no image, or without images to keep.
    """
    wanted = options.image_cache_memory
    if config.vision is None:
        if wanted is not None:
            raise OptionError("--image-cache-memory needs a model with an image encoder; this model has none")
        return None
    token_bytes = config.dim * value_bytes
    largest = config.vision.max_tokens * token_bytes
    if wanted is not None and wanted < largest:
        raise OptionError(
            f"--image-cache-memory {size(wanted)} is less than the embeddings of one image of "
            f"{config.vision.image_size} x {config.vision.image_size} pixels, {size(largest)}"
        )
    tokens = (max(IMAGE_CACHE, LEAST_IMAGES * largest) if wanted is None else wanted) // token_bytes
    return MediaSizes(
        _format(config, config.vision), tokens, tokens * token_bytes, _encoding(config.vision, value_bytes)
    )


def check_media(media: MediaSizes, free: int, where: str) -> None:
    """Raise MemoryLack if they take more than the `free` bytes."""
    if media.n_bytes > free:
        raise MemoryLack(
            f"{media.format.what} need {size(media.n_bytes)} beside the weights, {where} has {size(free)} free; choose "
            "a smaller --image-cache-memory or a smaller model"
        )


def _format(config: ModelConfig, vision: VisionConfig) -> ImageFormat:
    """A patch is compared with a token by their multiplications, in an image of the largest size."""
    attention = 2 * vision.max_patches * vision.dim * vision.n_layers
    patch = vision.n_parameters(config.dim) + attention
    token = config.n_active_parameters
    return ImageFormat(vision.patch_size, vision.merge, vision.image_size, max(1, round(token / patch)))


def _encoding(vision: VisionConfig, value_bytes: int) -> int:
    """Hidden states, q, k and v, cosines and sines, pixels and numbers of the largest image's patches."""
    values = vision.dim + 3 * vision.n_heads * vision.head_dim
    return vision.max_patches * (values * value_bytes + 4 * vision.head_dim + vision.patch_width + 8)
