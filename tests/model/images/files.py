"""Image files for tests: honest ones by Pillow, and ones that are made by hand, chunk by chunk."""

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, COLOUR, PALETTE, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 3, 4, 6
"""PNG's colour types."""


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """An image of random values."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Image.fromarray(values).convert(mode) if mode in ("1", "P") else _bands(values, mode)


def _bands(values: Any, mode: str) -> Image.Image:
    bands = [Image.fromarray(values[:, :, i].copy()) for i in range(4)]
    return Image.merge(mode, bands[: len(Image.new(mode, (1, 1)).getbands())])


def saved(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    """The image as a file."""
    file = BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def header(width: int, height: int, depth: int = 8, colour: int = COLOUR) -> bytes:
    return SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))


def png(width: int, height: int, rows: bytes, *extra: bytes, depth: int = 8, colour: int = COLOUR) -> bytes:
    """A PNG file: each of its `rows` begins with the number of its filter. `extra` chunks come before them."""
    data = chunk(b"IDAT", zlib.compress(rows, 9))
    return header(width, height, depth, colour) + b"".join(extra) + data + chunk(b"IEND", b"")


END = chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b"")
"""The rest of a PNG file of one pixel, after its header."""


def texts() -> bytes:
    """A PNG file of 70 KB that wants 250 MiB.

    Pillow allows 64 texts of 1 MiB. It counts their bytes in the file; in memory each letter has 4.
    """
    letters = "\N{GRINNING FACE}".encode() + b"x" * (2**20 - 9)
    packed = b"\0\1\0\0\0" + zlib.compress(letters, 9)
    return header(1, 1) + b"".join(chunk(b"iTXt", b"%d" % n + packed) for n in range(62)) + END


def gif(screen: tuple[int, int], frame: tuple[int, int], n_frames: int = 1) -> bytes:
    """A GIF file of black frames, with a screen of another size."""
    start = b"GIF89a" + struct.pack("<HH", *screen) + b"\x80\0\0" + b"\0\0\0\xff\xff\xff"
    place = b"," + struct.pack("<HHHH", 0, 0, *frame) + b"\0"
    return start + (place + b"\x02\x02\x4c\x01\0") * n_frames + b";"


def webp(canvas: tuple[int, int]) -> bytes:
    """A WebP file of one black frame of 4 x 4 pixels, with a canvas of another size."""
    still = saved(Image.new("RGB", (4, 4)), "WEBP", lossless=True)[12:]
    width, height, three = (side.to_bytes(3, "little") for side in (canvas[0] - 1, canvas[1] - 1, 3))
    frame = bytes(6) + three + three + bytes(4) + still
    parts = (b"VP8X", b"\x02\0\0\0" + width + height), (b"ANIM", bytes(6)), (b"ANMF", frame)
    body = b"WEBP" + b"".join(name + struct.pack("<I", len(data)) + data for name, data in parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def progressive(side: int, n_scans: int) -> bytes:
    """A grey JPEG of `side` x `side` pixels whose coefficients are sent `n_scans` times: 20 bytes for hours of work.

    The one code of each table is 0: no bits for the first coefficient, and for the others a run of empty blocks.
    """
    sizes = segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    one_code = b"\1" + bytes(15)
    tables = segment(0xDB, b"\0" + b"\1" * 64) + segment(0xC4, b"\0" + one_code + b"\0\x10" + one_code + b"\xe0")
    n_blocks = (side // 8) ** 2
    first = segment(0xDA, b"\1\1\0\0\0\0") + bytes(-(-n_blocks // 8))
    bits = ("0" + "1" * 14) * -(-n_blocks // 32767)
    bits += "1" * (-len(bits) % 8)
    runs = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    return b"\xff\xd8" + sizes + tables + first + (segment(0xDA, b"\1\1\0\1\x3f\0") + runs) * n_scans + b"\xff\xd9"


def segment(marker: int, data: bytes) -> bytes:
    """A segment of a JPEG file."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data
