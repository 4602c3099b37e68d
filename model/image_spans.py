"""Images as the scheduler and the runner speak of them: format, place, work. Plain data."""

from dataclasses import dataclass


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

    @property
    def token_side(self) -> int:
        """Pixels of a side of the square that one token stands for."""
        return self.patch_size * self.merge

    def n_patches(self, rows: int, columns: int) -> int:
        """Patches of an image of `rows` x `columns` tokens."""
        return rows * columns * self.merge**2

    def n_bytes(self, rows: int, columns: int) -> int:
        """Bytes of its RGB pixels."""
        return rows * columns * self.token_side**2 * 3


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """The place of an image in a sequence: positions `start..stop-1`.

    Each of its `rows` is `columns` positions whose embeddings the image encoder gives, then one of a break token; the
    last row ends with an end token instead. Worked example: 2 rows of 3 columns from position 10 are IMG at 10..12,
    BREAK at 13, IMG at 14..16 and END at 17. `digest` names the content: equal digests have equal pixels and sizes.
    """

    start: int
    rows: int
    columns: int
    digest: str

    @property
    def stop(self) -> int:
        return self.start + self.rows * (self.columns + 1)

    @property
    def n_embeddings(self) -> int:
        """Number of positions whose embeddings the image encoder gives."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class ImageWork:
    """A part of the encoding of one image, to be done in this step, before its slices are computed.

    The image has `n_patches`. The work up to `start` of them is done, the work up to `stop` is to be done: a step may
    do a part of an image, as it may do a part of a prompt. `stop == n_patches` completes it; its embeddings
    [rows * columns, dim] are then kept under the number `image` until `StepBatch.forgotten` has that number.
    `pixels` are RGB bytes [height, width, 3] of the resized image, rows * token_side high.
    """

    image: int
    rows: int
    columns: int
    pixels: bytes | memoryview
    start: int
    stop: int
    n_patches: int


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An encoded image that a slice reads: the number under which its embeddings are kept, and its place."""

    image: int
    span: ImageSpan
