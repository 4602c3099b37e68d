"""The process that decodes images, as its parent sees it."""

import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from model.errors import ImageError
from model.images.client import ImageProcess
from model.images.decode import decode
from model.images.process import LONG, SHORT
from model.machine.decoding import limited
from model.machine.helper import ProcessLost
from model.machine.limits import Timer
from model.media import ImageFormat
from tests.model.images.files import END, header, noise, progressive, saved, texts, webp

FORMAT = ImageFormat(patch_size=14, merge=2, longest_side=1540)
IMAGE = saved(noise(100, 60), "JPEG")
MAX_PIXELS = 2**20
SLOW = progressive(2**10, 200_000)
"""Minutes of work in 4 MB."""


@pytest.fixture
def process() -> Iterator[ImageProcess]:
    started = ImageProcess(MAX_PIXELS)
    yield started
    started.end()


def test_pixels_come_back_as_they_were_decoded(process: ImageProcess) -> None:
    large = saved(noise(250, 250))
    for data in (IMAGE, large, IMAGE):
        assert process.decode(data, FORMAT) == decode(data, FORMAT, MAX_PIXELS)


def test_a_bad_image_is_an_answer(process: ImageProcess) -> None:
    with pytest.raises(ImageError, match="has 1024 x 1025 = 1049600 pixels; the limit is 1048576"):
        process.decode(header(1024, 1025) + END, FORMAT)
    with pytest.raises(ImageError, match="has 16384 x 16384"):
        process.decode(webp((2**14, 2**14)), FORMAT)
    with pytest.raises(ImageError, match="damaged"):
        process.decode(IMAGE[:-100], FORMAT)
    assert process.decode(IMAGE, FORMAT).rows == 3


def test_an_image_that_takes_too_long_ends_it(process: ImageProcess) -> None:
    with pytest.raises(ProcessLost, match="SIGPROF") as caught:
        process.decode(SLOW, FORMAT)
    assert caught.value.by_limits
    assert process.ended


def test_the_time_of_an_image_depends_on_its_own_pixels() -> None:
    """The header has a limit of its own, then the pixels add to it."""
    timer, armed = Timer(), []
    with mock.patch.object(signal, "setitimer", lambda kind, seconds: armed.append(seconds)):
        for limit in (SHORT, LONG):
            with limited(timer, limit) as add_pixels:
                add_pixels(10**6)
    assert armed == pytest.approx([0.25, 0.27, 0.25, 0, 1.0, 1.15, 1.0, 0])


def test_an_image_that_takes_too_much_memory_ends_it(process: ImageProcess) -> None:
    with pytest.raises(ProcessLost, match="SIGABRT") as caught:
        process.decode(texts(), FORMAT)
    assert caught.value.by_limits


def test_the_first_image_finds_pillow_loaded(process: ImageProcess) -> None:
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "_imaging." in maps
    assert "_webp." in maps
