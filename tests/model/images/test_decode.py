"""From files to pixels, against Pillow by hand, transformers and numbers on paper."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from model.images.decode import decode
from model.images.sizes import Pixels
from model.media import ImageFormat
from tests.model.images.files import COLOUR, GREY, GREY_ALPHA, PALETTE, chunk, noise, png, saved

FORMAT = ImageFormat(patch_size=2, merge=2, longest_side=64)
LIMIT = 2**20


def decoded(data: bytes) -> Pixels:
    return decode(data, FORMAT, LIMIT)


def array(found: Pixels, format: ImageFormat = FORMAT) -> np.ndarray:
    side = format.token_side
    return np.frombuffer(found.pixels, np.uint8).reshape(found.rows * side, found.columns * side, 3)


def dot(data: bytes) -> tuple[int, ...]:
    """The colour of an image of one colour."""
    pixels = array(decoded(data)).reshape(-1, 3)
    assert (pixels == pixels[0]).all()
    return tuple(map(int, pixels[0]))


@pytest.mark.parametrize("size", [(64, 64), (30, 50), (7, 61), (100, 33), (999, 5), (3, 1)])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_pixels_are_those_of_transformers(size: tuple[int, int], kind: str) -> None:
    image = noise(*size)
    processor = PixtralImageProcessorPil(patch_size={"height": 4, "width": 4}, size={"longest_edge": 64})
    steps = {"do_rescale": False, "do_normalize": False}
    theirs = None if min(size) < 6 else processor(image, return_tensors="np", **steps)["pixel_values"][0]
    found = array(decoded(saved(image, kind, **({"lossless": True} if kind == "WEBP" else {}))))
    if theirs is None:  # transformers has no row left
        theirs = np.asarray(image.resize(found.shape[1::-1], Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert (found == theirs.transpose(1, 2, 0)).all()


def test_a_size_that_fits_is_not_resampled() -> None:
    image = noise(16, 8)
    assert (array(decoded(saved(image))) == np.asarray(image)).all()


def test_a_jpeg_and_its_first_gif_frame_are_read_as_pillow_does() -> None:
    image = noise(16, 8)
    for data in (saved(image, "JPEG"), saved(image, "GIF", save_all=True, append_images=[noise(16, 8, seed=1)])):
        assert (array(decoded(data)) == np.asarray(Image.open(BytesIO(data)).convert("RGB"))).all()


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_of_an_animation_the_first_frame_is_used(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), (n, 0, 0)) for n in (10, 20, 30)]
    options = {"lossless": True} if kind == "WEBP" else {}
    assert dot(saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)) == (10, 0, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(noise(16, 8), kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    expected = ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB")
    assert expected.size == ((16, 8) if orientation < 5 else (8, 16))
    assert (array(decoded(data)) == np.asarray(expected)).all()


def test_a_lack_of_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image would be decoded, but not turned."""

    def transpose(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ImageOps, "exif_transpose", transpose)
    with pytest.raises(MemoryError):
        decoded(saved(noise(16, 8), "JPEG"))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0" + b"\xff" * 40])
def test_damaged_exif_data_cost_nothing(exif: bytes) -> None:
    image = noise(16, 8)
    assert array(decoded(saved(image, "JPEG", exif=exif))).shape == (8, 16, 3)


@pytest.mark.parametrize(("value", "grey"), [(0, 0), (255, 0), (256, 1), (0x8000, 128), (0xFFFF, 255)])
def test_sixteen_bits_are_scaled_and_not_cut(value: int, grey: int) -> None:
    """The high byte counts, for grey as for colours."""
    raw = value.to_bytes(2, "big")
    rows = (b"\0" + raw * 4) * 4
    assert dot(png(4, 4, rows, depth=16, colour=GREY)) == (grey,) * 3
    assert dot(png(4, 4, (b"\0" + raw * 12) * 4, depth=16, colour=COLOUR)) == (grey,) * 3
    assert dot(png(4, 4, (b"\0" + (raw + b"\xff\xff") * 4) * 4, depth=16, colour=GREY_ALPHA)) == (grey,) * 3


@pytest.mark.parametrize(
    ("depth", "colour", "pixel", "hidden", "seen"),
    [
        (8, GREY, b"\x07", b"\0\x07", 255),
        (8, GREY, b"\x08", b"\0\x07", 8),
        (16, GREY, b"\x07\x01", b"\x07\x01", 255),
        (16, GREY, b"\x07\x02", b"\x07\x01", 7),
        (8, COLOUR, b"\x07" * 3, b"\0\x07" * 3, 255),
        (8, COLOUR, b"\x08" * 3, b"\0\x07" * 3, 8),
        (16, COLOUR, b"\x07\x01" * 3, b"\x07\x01" * 3, 255),
        (16, COLOUR, b"\x08\x01" * 3, b"\x07\x01" * 3, 8),
        (16, COLOUR, b"\x08\x01" * 3, b"\0\x08" * 3, 8),
    ],
)
def test_the_transparent_colour_of_a_png_becomes_white(
    depth: int, colour: int, pixel: bytes, hidden: bytes, seen: int
) -> None:
    rows = (b"\0" + pixel * 4) * 4
    assert dot(png(4, 4, rows, chunk(b"tRNS", hidden), depth=depth, colour=colour)) == (seen,) * 3


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_only_the_transparent_grey_of_a_png_is_white(depth: int) -> None:
    """All pairs of a sample and a transparent one: they are compared as the file has them, before they are scaled."""
    top = 2**depth - 1
    samples = range(top + 1) if depth < 8 else (0, 1, 7, 127, 254, 255)
    for sample in samples:
        row = b"\0" + bytes([sum(sample << shift for shift in range(0, 8, depth))]) * depth
        for hidden in samples:
            seen = 255 if sample == hidden else sample * 255 // top
            data = png(8, 4, row * 4, chunk(b"tRNS", hidden.to_bytes(2, "big")), depth=depth, colour=GREY)
            assert dot(data) == (seen,) * 3, (sample, hidden)


def test_one_bit_has_two_greys() -> None:
    assert dot(png(8, 4, b"\0\xff" * 4, depth=1, colour=GREY)) == (255, 255, 255)
    assert dot(png(8, 4, b"\0\0" * 4, depth=1, colour=GREY)) == (0, 0, 0)
    assert dot(png(8, 4, b"\0\0" * 4, chunk(b"tRNS", b"\0\0"), depth=1, colour=GREY)) == (255, 255, 255)


def test_a_palette_with_transparency_is_seen_on_white() -> None:
    """Colour 1 is (100, 200, 0) and has half an alpha: 255 + (c - 255) * 128 / 255."""
    chunks = chunk(b"PLTE", bytes([0, 0, 0, 100, 200, 0])), chunk(b"tRNS", b"\xff\x80")
    assert dot(png(4, 4, b"\0\1\1\1\1" * 4, *chunks, colour=PALETTE)) == (177, 227, 127)
    assert dot(png(4, 4, b"\0\0\0\0\0" * 4, *chunks, colour=PALETTE)) == (0, 0, 0)


@pytest.mark.parametrize(("mode", "kind"), [("RGBA", "PNG"), ("LA", "PNG"), ("RGBA", "WEBP")])
def test_transparency_is_blended_with_white(mode: str, kind: str) -> None:
    image = noise(16, 8, mode)
    found = array(decoded(saved(image, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))))
    values = np.asarray(image.convert("RGBA")).astype(float)
    alpha = values[:, :, 3:] / 255
    assert np.abs(found - (values[:, :, :3] * alpha + 255 * (1 - alpha))).max() <= 1


def test_a_transparent_gif_is_seen_on_white() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([9, 9, 9, 50, 60, 70])
    assert dot(saved(image, "GIF")) == (50, 60, 70)
    assert dot(saved(image, "GIF", transparency=1)) == (255, 255, 255)


def test_cmyk_is_read_as_it_is_printed() -> None:
    """Adobe's files hold the inverse of each ink, and Pillow writes them so. No ink is white."""
    assert dot(saved(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG")) == (255, 255, 255)
    assert dot(saved(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "JPEG", quality=100)) == (0, 255, 255)
    assert b"Adobe" in saved(Image.new("CMYK", (8, 8)), "JPEG")


def test_a_colour_profile_is_ignored() -> None:
    image = noise(16, 8)
    assert decoded(saved(image, icc_profile=b"no profile")) == decoded(saved(image))


def test_a_line_of_pixels_is_one_row_of_tokens() -> None:
    found = decoded(saved(noise(10_000, 1)))
    assert (found.rows, found.columns, len(found.pixels)) == (1, 16, 3 * 4 * 64)
