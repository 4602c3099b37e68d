"""The grid of tokens that an image is resized to, and its pixels."""

from math import floor
from typing import NamedTuple

from model.media import ImageFormat


class Pixels(NamedTuple):
    """RGB bytes [rows * token_side, columns * token_side, 3] of an image."""

    rows: int
    columns: int
    pixels: bytes


def grid(width: int, height: int, format: ImageFormat) -> tuple[int, int]:
    """Return rows and columns of tokens for an image of `width` x `height` pixels, at least one of each.

    An image that is too long is divided by a ratio and rounded down, then each side is rounded up to whole tokens.
    These are the numbers of `PixtralImageProcessor` in transformers. Worked example: 2048 x 1000 pixels, at most 1024 a
    side, 16 pixels a token: ratio 2, 1024 x 500 pixels, 64 columns, ceil(500 / 16) = 32 rows.
    """
    ratio = max(height / format.longest_side, width / format.longest_side)
    if ratio > 1:
        width, height = floor(width / ratio), floor(height / ratio)
    rows, columns = (max(1, -(-side // format.token_side)) for side in (height, width))
    return rows, columns
