"""From the bytes of an image file to RGB pixels of the size that a model takes. Needs Pillow.

The data may be hostile: this runs in a process of its own (`model/images/process.py`). Colour profiles are ignored, as
transformers and mistral-common ignore them. Of an animation the first frame is used.
"""

import logging
from collections.abc import Callable
from functools import partial
from io import BytesIO

from PIL import Image, ImageOps
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import Resampling
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from model.errors import MediaError, one_line
from model.images.sizes import Pixels, grid
from model.media import ImageFormat

FORMATS = [plugin.format for plugin in (PngImageFile, JpegImageFile, WebPImageFile, GifImageFile)]
DEEP = "I;16"
"""Pillow's mode of grey with 16 bits."""
BIT_DEPTH = 24
"""The byte of a PNG file with the bits of a colour (PNG, section 11.2.2). Pillow reads the high bytes of 16 bits."""
HIGH_BYTES = [value >> 8 for value in range(2**16)]

log = logging.getLogger(__name__)

# Private: Pillow's manual assigns here; no argument sets this limit, which only warns. `_open` has ours.
Image.MAX_IMAGE_PIXELS = None


def decode(
    data: bytes, format: ImageFormat, max_pixels: int, on_size: Callable[[int], None] = lambda n_pixels: None
) -> Pixels:
    """Decode the pixels of an image file, upright, on white where it is transparent, resized once. Raises MediaError.

    `on_size` gets the number of its pixels before they are decoded. MemoryError is not caught: the limit of
    memory ends the process.
    """
    try:
        with _open(data, max_pixels) as image:
            on_size(image.width * image.height)
            image.load()
            try:
                ImageOps.exif_transpose(image, in_place=True)
            except MemoryError:
                raise
            except Exception:  # damaged EXIF data are no reason to refuse the pixels
                log.debug("the EXIF data of an image are damaged", exc_info=True)
            upright = _rgb(image)
    except (MediaError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise errors of many types for damaged data
        raise MediaError(f"is damaged: {one_line(error)}") from error
    rows, columns = grid(*upright.size, format)
    resized = upright.resize((columns * format.token_side, rows * format.token_side), Resampling.BICUBIC)
    return Pixels(rows, columns, resized.tobytes())


def _open(data: bytes, max_pixels: int) -> Image.Image:
    """Open the image and read its header, but decode no pixel."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":  # Pillow's reader takes memory for the pixels at once
        _check_size(*_webp_size(data), max_pixels)
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except Image.UnidentifiedImageError:
        raise MediaError("is no PNG, JPEG, WebP or GIF image, or its header is damaged") from None
    _check_size(*image.size, max_pixels)
    hidden = image.info.get("transparency")
    if isinstance(hidden, tuple) and data[BIT_DEPTH] == 16:
        image.info["transparency"] = tuple(value >> 8 for value in hidden)
    elif isinstance(hidden, int) and image.format == "PNG" and image.mode == "L":  # its samples are scaled to 8 bits
        image.info["transparency"] = hidden * 255 // (2 ** data[BIT_DEPTH] - 1)
    return image


def _webp_size(data: bytes) -> tuple[int, int]:
    """Read width and height in the first chunk of a WebP file (RFC 9649, sections 2.5 to 2.7), 0 where it has none."""
    kind, number = data[12:16], partial(int.from_bytes, byteorder="little")
    if kind == b"VP8X":
        return number(data[24:27]) + 1, number(data[27:30]) + 1
    if kind == b"VP8L":
        bits = number(data[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return (number(data[26:28]) & 0x3FFF, number(data[28:30]) & 0x3FFF) if kind == b"VP8 " else (0, 0)


def _check_size(width: int, height: int, max_pixels: int) -> None:
    n_pixels = width * height
    if n_pixels > max_pixels:
        raise MediaError(f"has {width} x {height} = {n_pixels} pixels; the limit is {max_pixels} (--max-image-pixels)")


def _rgb(image: Image.Image) -> Image.Image:
    """Convert the image to RGB, on white where it is transparent: mistral-common blends in this way too."""
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
    """Convert grey of 16 bits to the high 8, and return where it is opaque (None: everywhere)."""
    wide, hidden = image.convert("I"), image.info.get("transparency")
    alpha = None if hidden is None else wide.point([255 * (value != hidden) for value in range(2**16)], "L")
    return wide.point(HIGH_BYTES, "L"), alpha
