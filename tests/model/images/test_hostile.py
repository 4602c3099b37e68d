"""Files that lie, are damaged or want too much: each gives pixels or an error that says why."""

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from PIL import Image

from model.errors import MediaError
from model.images.decode import decode
from model.media import ImageFormat
from tests.model.images.files import END, SIGNATURE, chunk, gif, header, noise, png, progressive, saved, webp

FORMAT = ImageFormat(patch_size=2, merge=2, longest_side=64)
BOMB = zlib.compress(bytes(2**27), 9)  # 130 KB


def refused(data: bytes, max_pixels: int = 2**20) -> str:
    with pytest.raises(MediaError) as caught:
        decode(data, FORMAT, max_pixels)
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (header(50_000, 50_000) + END, "50000 x 50000 = 2500000000"),
        (gif((65_535, 65_535), (1, 1)), "65535 x 65535 = 4294836225"),
        (gif((1, 1), (65_535, 65_535)), "65535 x 65535 = 4294836225"),
        (webp((2**14, 2**14)), "16384 x 16384 = 268435456"),
        (webp((2**24, 2**8)), "16777216 x 256 = 4294967296"),
        (progressive(65_528, 1), "65528 x 65528 = 4293918784"),
    ],
    ids=["PNG", "GIF's screen", "GIF's frame", "WebP", "WebP's width", "JPEG"],
)
def test_a_size_above_the_limit_is_refused_before_a_pixel_is_decoded(data: bytes, size: str) -> None:
    assert refused(data) == f"has {size} pixels; the limit is 1048576 (--max-image-pixels)"


@pytest.mark.parametrize("lossless", [True, False])
def test_the_limit_holds_for_each_kind_of_webp(*, lossless: bool) -> None:
    data = saved(noise(40, 25), "WEBP", lossless=lossless)
    assert decode(data, FORMAT, 1000).columns == 10
    assert refused(data, 999) == "has 40 x 25 = 1000 pixels; the limit is 999 (--max-image-pixels)"


@pytest.mark.parametrize("name", [b"zTXt", b"iCCP", b"iTXt"])
def test_compressed_text_is_not_unpacked_without_limit(name: bytes) -> None:
    packed = b"k\0\1\0\0\0" + BOMB if name == b"iTXt" else b"k\0\0" + BOMB
    assert "too large" in refused(header(1, 1) + chunk(name, packed) + END)


def test_frames_after_the_first_cost_nothing() -> None:
    """Each costs about 30 bytes of the file. A reader that counts them needs seconds."""
    assert decode(gif((4, 4), (1, 1), 100_000), FORMAT, 16).rows == 1
    counted = chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))
    assert decode(header(1, 1) + counted + END, FORMAT, 16).rows == 1


KINDS: dict[str, Callable[[], bytes]] = {
    "PNG": lambda: saved(noise(5, 4)),
    "palette": lambda: saved(noise(5, 4, "P"), transparency=3),
    "JPEG": lambda: saved(noise(9, 4), "JPEG", progressive=True),
    "CMYK": lambda: saved(noise(9, 4, "CMYK"), "JPEG", quality=10),
    "WebP": lambda: saved(noise(5, 4, "RGBA"), "WEBP"),
    "GIF": lambda: saved(noise(5, 4, "P"), "GIF"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_an_image_or_an_error(kind: str) -> None:
    """Cut after each byte, and with each byte inverted. A cut that passes leaves out checksums and the end mark."""
    data = KINDS[kind]()
    for place in range(len(data)):
        try:
            decode(data[:place], FORMAT, 1000)
        except MediaError:
            continue
        assert place > len(data) - 24, f"{place} of {len(data)} bytes are enough"
    for place in range(len(data)):
        with suppress(MediaError):
            found = decode(data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :], FORMAT, 1000)
            assert len(found.pixels) == found.rows * found.columns * 4 * 4 * 3


def test_a_header_that_promises_more_than_the_data_have_is_damaged() -> None:
    assert "damaged" in refused(header(10, 10) + chunk(b"IDAT", b"no zlib") + chunk(b"IEND", b""))
    assert "damaged" in refused(saved(noise(64, 64), "JPEG")[:600])


def test_the_header_has_the_size_of_the_image() -> None:
    """Rows beyond it are not read, and those that a complete stream does not have are black."""
    white = b"\0" + b"\xff" * 12
    for n_rows, end in ((2, bytes(24)), (4, b"\xff" * 24), (400, b"\xff" * 24)):
        found = decode(png(4, 4, white * n_rows), FORMAT, 1000)
        assert (found.rows, found.columns, found.pixels) == (1, 1, b"\xff" * 24 + end)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a",
        SIGNATURE,
        b"\xff\xd8\xff",
        b"RIFF\0\0\0\0WEBP",
        b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        b"<!DOCTYPE html><html></html>",
        b"%PDF-1.7\n%%EOF",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        saved(Image.new("RGB", (16, 16)), "ICO"),
        saved(Image.new("RGB", (4, 4)), "TIFF"),
        saved(Image.new("RGB", (4, 4)), "BMP"),
        saved(Image.new("RGB", (4, 4)), "PPM"),
        saved(Image.new("RGB", (4, 4)), "TGA"),
    ],
)
def test_other_kinds_of_files_are_refused(data: bytes) -> None:
    assert refused(data) == "is no PNG, JPEG, WebP or GIF image, or its header is damaged"
