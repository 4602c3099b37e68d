"""The grid of an image, against transformers."""

import pytest
from transformers.image_utils import ChannelDimension
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

from model.images.sizes import grid
from model.media import ImageFormat

PIXTRAL = ImageFormat(patch_size=16, merge=1, longest_side=1024)
SMALL_3_1 = ImageFormat(patch_size=14, merge=2, longest_side=1540)
ODD = ImageFormat(patch_size=5, merge=3, longest_side=97)
SIDES = (1, 2, 13, 14, 15, 16, 17, 28, 29, 97, 333, 1000, 1023, 1024, 1025, 1539, 1540, 1541, 2047, 4097, 9999)


class Sized:
    """What transformers reads of an array [3, height, width]: its shape."""

    def __init__(self, height: int, width: int) -> None:
        self.shape = (3, height, width)
        self.ndim = 3


def theirs(width: int, height: int, format: ImageFormat) -> tuple[int, int]:
    rows, columns = get_resize_output_image_size(
        Sized(height, width), format.longest_side, format.token_side, ChannelDimension.FIRST
    )
    return rows // format.token_side, columns // format.token_side


@pytest.mark.parametrize("format", [PIXTRAL, SMALL_3_1, ODD], ids=str)
def test_sizes_are_those_of_transformers(format: ImageFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers has no rows or no columns left, there is one."""
    monkeypatch.setattr(
        "transformers.models.pixtral.image_processing_pil_pixtral.get_image_size", lambda image, _: image.shape[1:]
    )
    for width in SIDES:
        for height in SIDES:
            rows, columns = theirs(width, height, format)
            assert grid(width, height, format) == (max(rows, 1), max(columns, 1)), (width, height)
