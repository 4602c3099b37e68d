"""From the bytes of an image file to RGB pixels of the size that a model takes. Needs Pillow.

The data may be hostile: this runs in a process of its own (`model/images/process.py`). Colour profiles are ignored, as
transformers and mistral-common ignore them. Of an animation the first frame is used.
"""

from contextlib import suppress
from io import BytesIO

from PIL import Image
from PIL.ExifTags import Base
from PIL.Image import Resampling, Transpose

from model.batch import ImageFormat
from model.errors import ImageError, one_line
from model.images.sizes import Pixels, grid

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
TRANSPOSITIONS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
"""EXIF's orientation -> what brings the image upright."""
DEEP = "I;16"
"""Pillow's mode of grey with 16 bits."""
HIGH_BYTES = [value >> 8 for value in range(2**16)]

Image.MAX_IMAGE_PIXELS = None  # `_open` has the limit; Pillow's own only warns up to twice its value


def decode(data: bytes, format: ImageFormat, max_pixels: int) -> Pixels:
    """The pixels of an image file, upright, on white where it is transparent, resized once. Raises ImageError.

    MemoryError is not caught: the limit of memory ends the process.
    """
    try:
        with _open(data, max_pixels) as image:
            image.load()
            _check_size(image, max_pixels)  # a file may say one thing in its header and another in its frame
            upright = _upright(_rgb(image), _orientation(image))
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise errors of many types for damaged data
        raise ImageError(f"is damaged: {one_line(error)}") from error
    rows, columns = grid(*upright.size, format)
    resized = upright.resize((columns * format.token_side, rows * format.token_side), Resampling.BICUBIC)
    return Pixels(rows, columns, resized.tobytes())


def _open(data: bytes, max_pixels: int) -> Image.Image:
    """The image with its header read, but no pixel decoded."""
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except Image.UnidentifiedImageError:
        raise ImageError("is no PNG, JPEG, WebP or GIF image, or its header is damaged") from None
    _check_size(image, max_pixels)
    return image


def _check_size(image: Image.Image, max_pixels: int) -> None:
    n_pixels = image.width * image.height
    if n_pixels > max_pixels:
        raise ImageError(f"has {image.width} x {image.height} = {n_pixels} pixels; the limit is {max_pixels}")


def _rgb(image: Image.Image) -> Image.Image:
    """The image in RGB, on white where it is transparent: mistral-common blends in this way too."""
    alpha: Image.Image | None = None
    if image.mode == DEEP:  # Pillow would cut values at 255
        image, alpha = _eight_bits(image)
    elif image.has_transparency_data:
        image = alpha = image.convert("RGBA")
    if alpha is None:
        return image.convert("RGB")
    canvas = Image.new("RGB", image.size, "white")
    canvas.paste(image, mask=alpha)
    return canvas


def _eight_bits(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Grey of 16 bits as grey of 8, the high bytes, and where it is opaque (None: everywhere)."""
    wide, hidden = image.convert("I"), image.info.get("transparency")
    alpha = None if hidden is None else wide.point([255 * (value != hidden) for value in range(2**16)], "L")
    return wide.point(HIGH_BYTES, "L"), alpha


def _orientation(image: Image.Image) -> int:
    """EXIF's orientation, 1 (upright) if the image has none that can be read."""
    with suppress(Exception):  # damaged EXIF data are no reason to refuse the pixels
        return int(image.getexif().get(Base.Orientation, 1))
    return 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    transposition = TRANSPOSITIONS.get(orientation)
    return image if transposition is None else image.transpose(transposition)
