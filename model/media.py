"""Images and audio as the scheduler and the runner speak of them: format, place, work. Plain data.

A media item is an image, or 30 seconds of audio. A model's encoder converts each to embeddings, apart from all others.
"""

from dataclasses import dataclass
from typing import ClassVar

KINDS = ("image", "audio")


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """How a model cuts images into tokens.

    A token stands for a square of `merge` x `merge` patches, and a patch for one of `patch_size` x `patch_size` pixels.
    An image whose longer side has more than `longest_side` pixels is made smaller. `patches_per_token` says how many
    patches the encoder computes in about the time of one token of the text model.
    """

    patch_size: int
    merge: int
    longest_side: int
    patches_per_token: int = 1
    what: ClassVar[str] = "images"

    @property
    def token_side(self) -> int:
        """Return the pixels of a side of the square that one token stands for."""
        return self.patch_size * self.merge

    @property
    def smallest(self) -> tuple[int, int]:
        """Return rows and columns of the smallest image."""
        return 1, 1

    def n_patches(self, rows: int, columns: int) -> int:
        """Return the patches of an image of `rows` x `columns` tokens."""
        return rows * columns * self.merge**2

    def n_bytes(self, rows: int, columns: int) -> int:
        """Return the bytes of its RGB pixels."""
        return rows * columns * self.token_side**2 * 3


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """How a model cuts audio into tokens: a chunk of `seconds` has `chunk_tokens`, in one row.

    Each stands for `group` positions of the encoder, and each position for two frames of `n_mels` values (Whisper,
    arXiv 2212.04356). The last chunk is filled up with silence. `patches_per_token` is as for images, with positions.
    """

    n_mels: int
    chunk_tokens: int
    group: int
    seconds: float = 30.0
    patches_per_token: int = 1
    what: ClassVar[str] = "audio"

    @property
    def smallest(self) -> tuple[int, int]:
        """Return the rows and columns of a chunk."""
        return 1, self.chunk_tokens

    def n_patches(self, rows: int, columns: int) -> int:
        """Return the positions of the encoder in a chunk."""
        return rows * columns * self.group

    def n_bytes(self, rows: int, columns: int) -> int:
        """Return the bytes of its mel spectrum in float32."""
        return self.n_patches(rows, columns) * 2 * self.n_mels * 4

    def max_seconds(self, n_tokens: int) -> float:
        """Return the longest audio that `n_tokens` hold."""
        return n_tokens // self.chunk_tokens * self.seconds


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """The place of an image or a chunk of audio in a sequence: positions `start..stop-1`.

    Each of its `rows` is `columns` positions whose embeddings the encoder gives, then `breaks` positions of tokens.
    An image has one: of a break token, and of an end token after the last row. Audio has none. Worked example: an image
    of 2 rows and 3 columns from position 10 is IMG at 10..12, BREAK at 13, IMG at 14..16 and END at 17. `digest` names
    the content: equal digests have equal sizes and equal bytes for the encoder.
    """

    start: int
    rows: int
    columns: int
    digest: str
    breaks: int = 1

    @property
    def stop(self) -> int:
        return self.start + self.rows * (self.columns + self.breaks)

    @property
    def kind(self) -> str:
        """Return one of `KINDS`."""
        return KINDS[self.breaks == 0]

    @property
    def n_embeddings(self) -> int:
        """Count the positions whose embeddings the encoder gives."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class MediaWork:
    """A part of the encoding of one media item, to be done in this step, before its slices are computed.

    The item has `n_patches`. The work up to `start` of them is done, the work up to `stop` is to be done: a step may
    do a part of an item, as it may do a part of a prompt. `stop == n_patches` completes it; its embeddings
    [rows * columns, dim] are then stored under `number` until `StepBatch.forgotten` has that number.
    `inputs` are the bytes that the encoder reads: of an image RGB [height, width, 3], resized, of a chunk of audio its
    mel spectrum [n_mels, frames] in float32.
    """

    number: int
    rows: int
    columns: int
    inputs: bytes | memoryview
    start: int
    stop: int
    n_patches: int


@dataclass(frozen=True, slots=True)
class PlacedMedia:
    """An encoded media item that a slice reads: the number under which its embeddings are stored, and its place."""

    number: int
    span: MediaSpan
