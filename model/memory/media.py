"""How a model cuts images into tokens, and what its images take. No torch; sizes in bytes."""

from dataclasses import dataclass

from model.config.audio import AudioConfig
from model.config.model import ModelConfig
from model.config.vision import VisionConfig
from model.errors import MemoryLack, OptionError, size
from model.media import AudioFormat, ImageFormat
from model.options import IMAGE_CACHE, LEAST_IMAGES, RunnerOptions


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


def media_sizes(config: ModelConfig, options: RunnerOptions, value_bytes: int, slowness: int = 1) -> MediaSizes | None:
    """Return the sizes for values of `value_bytes`; None for a model without an encoder.

    A multiplication in the encoder takes as long as `slowness` in the text model.

    Raises OptionError for a --image-cache-memory that holds no image or chunk of audio, or for a model of text.
    """
    requested, encoder = options.image_cache_memory, config.encoder
    if encoder is None:
        if requested is not None:
            raise OptionError("--image-cache-memory needs a model that takes images or audio; this one takes none")
        return None
    token_bytes = config.dim * value_bytes
    largest = encoder.max_tokens * token_bytes
    if requested is not None and requested < largest:
        raise OptionError(
            f"--image-cache-memory {size(requested)} is less than the embeddings of {encoder.largest}, {size(largest)}"
        )
    tokens = (max(IMAGE_CACHE, LEAST_IMAGES * largest) if requested is None else requested) // token_bytes
    return MediaSizes(_format(config, encoder, slowness), tokens, tokens * token_bytes, _encoding(encoder, value_bytes))


def check_media(media: MediaSizes, free: int, where: str) -> None:
    """Raise MemoryLack if they take more than the `free` bytes."""
    if media.n_bytes > free:
        raise MemoryLack(
            f"{media.format.what} need {size(media.n_bytes)} beside the weights, {where} has {size(free)} free; choose "
            "a smaller --image-cache-memory or a smaller model"
        )


def _format(config: ModelConfig, encoder: VisionConfig | AudioConfig, slowness: int) -> ImageFormat | AudioFormat:
    """Make the format. A patch is compared with a token by their multiplications, in the largest item."""
    attention = 2 * encoder.max_patches * encoder.dim * encoder.n_layers
    patch = slowness * (encoder.n_parameters(config.dim) + attention)
    rate = max(1, round(config.n_active_parameters / patch))
    if isinstance(encoder, VisionConfig):
        return ImageFormat(encoder.patch_size, encoder.merge, encoder.image_size, rate)
    return AudioFormat(encoder.n_mels, encoder.max_tokens, encoder.group, encoder.seconds, rate)


def _encoding(encoder: VisionConfig | AudioConfig, value_bytes: int) -> int:
    """Return the bytes of the largest item's hidden states, q, k, v, cosines, sines, inputs and numbers of patches."""
    values = encoder.dim + 3 * encoder.n_heads * encoder.head_dim
    return encoder.max_patches * (values * value_bytes + 4 * encoder.head_dim + encoder.patch_bytes + 8)
