"""The process that decodes images, as its parent sees it."""

import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from model.errors import MediaError
from model.images.decode import decode
from model.images.process import LIMITS
from model.machine.decoding import DecodingProcess, limited
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
def process() -> Iterator[DecodingProcess]:
    started = DecodingProcess("images", MAX_PIXELS)
    yield started
    started.end()


def test_pixels_come_back_as_they_were_decoded(process: DecodingProcess) -> None:
    large = saved(noise(250, 250))
    for data in (IMAGE, large, IMAGE):
        answer, pixels = process.decode(data, FORMAT)
        assert (answer["rows"], answer["columns"], pixels) == decode(data, FORMAT, MAX_PIXELS)


def test_a_bad_image_is_an_answer(process: DecodingProcess) -> None:
    with pytest.raises(MediaError, match="has 1024 x 1025 = 1049600 pixels; the limit is 1048576"):
        process.decode(header(1024, 1025) + END, FORMAT)
    with pytest.raises(MediaError, match="has 16384 x 16384"):
        process.decode(webp((2**14, 2**14)), FORMAT)
    with pytest.raises(MediaError, match="damaged"):
        process.decode(IMAGE[:-100], FORMAT)
    assert process.decode(IMAGE, FORMAT)[0]["rows"] == 3


def test_an_image_that_takes_too_long_ends_it(process: DecodingProcess) -> None:
    with pytest.raises(ProcessLost, match="SIGPROF") as caught:
        process.decode(SLOW, FORMAT)
    assert caught.value.by_limits
    assert process.ended


def test_the_time_of_an_image_depends_on_its_own_pixels() -> None:
    """The header has a limit of its own, then the pixels add to it."""
    timer, armed = Timer(), []
    with mock.patch.object(signal, "setitimer", lambda kind, seconds: armed.append(seconds)):
        for limit in (LIMITS.short, LIMITS.long):
            with limited(timer, limit) as add_pixels:
                add_pixels(10**6)
    assert armed == pytest.approx([0.25, 0.27, 0.25, 0, 1.0, 1.15, 1.0, 0])


def test_an_image_that_takes_too_much_memory_ends_it(process: DecodingProcess) -> None:
    with pytest.raises(ProcessLost, match="SIGABRT") as caught:
        process.decode(texts(), FORMAT)
    assert caught.value.by_limits


def test_the_first_image_finds_pillow_loaded(process: DecodingProcess) -> None:
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "_imaging." in maps
    assert "_webp." in maps
