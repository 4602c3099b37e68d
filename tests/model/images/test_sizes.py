"""The grid of an image, against transformers and against numbers computed by hand."""

import pytest
from transformers.image_utils import ChannelDimension
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

from model.image_spans import ImageFormat
from model.images.sizes import grid

PIXTRAL = ImageFormat(patch_size=16, merge=1, longest_side=1024)
SMALL_3_1 = ImageFormat(patch_size=14, merge=2, longest_side=1540)
ODD = ImageFormat(patch_size=5, merge=3, longest_side=97)
SIDES = (
    1,
    2,
    13,
    14,
    15,
    16,
    17,
    28,
    29,
    96,
    97,
    98,
    333,
    1000,
    1023,
    1024,
    1025,
    1539,
    1540,
    1541,
    2047,
    2050,
    4097,
    9999,
)


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


@pytest.mark.parametrize(
    ("format", "size", "expected"),
    [
        (PIXTRAL, (2048, 1000), (32, 64)),  # ratio 2: 1024 x 500
        (PIXTRAL, (16, 17), (2, 1)),
        (PIXTRAL, (1024, 1024), (64, 64)),
        (PIXTRAL, (1025, 1024), (64, 64)),  # ratio 1.00098: 1024 x 1023
        (SMALL_3_1, (1540, 1540), (55, 55)),
        (SMALL_3_1, (3000, 1540), (29, 55)),  # ratio 1.948: 1540 x 790; 790 / 28 = 28.2
        (SMALL_3_1, (29, 28), (1, 2)),
        (SMALL_3_1, (1, 10_000), (55, 1)),  # the short side would be 0
        (SMALL_3_1, (10_000, 1), (1, 55)),
        (SMALL_3_1, (1, 1), (1, 1)),
    ],
)
def test_sizes_by_hand(format: ImageFormat, size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert grid(*size, format) == expected
