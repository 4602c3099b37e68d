"""The process that decodes images, as its parent sees it."""

import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.batch import ImageFormat
from model.errors import ImageError
from model.images.client import ImageProcess
from model.images.decode import decode
from model.machine.helper import ProcessLost
from tests.faults import FAULTS, descriptors, every_fault, offspring
from tests.model.images.files import chunk, header, noise, progressive, saved, webp
from tests.waiting import ended, eventually, strike

FORMAT = ImageFormat(patch_size=14, merge=2, longest_side=1540)
END = chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b"")
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


def test_an_image_that_takes_too_much_memory_ends_it(process: ImageProcess) -> None:
    """Pillow allows 64 texts of 1 MiB. It counts their bytes in the file; in memory each letter has 4."""
    letters = "\N{GRINNING FACE}".encode() + b"x" * (2**20 - 9)
    packed = b"\0\1\0\0\0" + zlib.compress(letters, 9)
    data = header(1, 1) + b"".join(chunk(b"iTXt", b"%d" % n + packed) for n in range(62)) + END
    with pytest.raises(ProcessLost, match="SIGABRT") as caught:
        process.decode(data, FORMAT)
    assert caught.value.by_limits


def test_the_first_image_finds_pillow_loaded(process: ImageProcess) -> None:
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "_imaging." in maps
    assert "_webp." in maps


def tried() -> ProcessLost | None:
    """Decode an image in a process of its own."""
    try:
        process = ImageProcess(MAX_PIXELS)
        assert process.decode(IMAGE, FORMAT).columns == 4
        process.end()
    except ProcessLost as lost:
        return lost
    return None


@pytest.mark.parametrize(("kind", "code"), FAULTS)
def test_every_fault_ends_in_pixels_or_a_lost_process(kind: str, code: int) -> None:
    ImageProcess(MAX_PIXELS).end()  # what is opened once, is opened
    before, children = descriptors(), offspring()
    for fault in every_fault(kind, code):
        lost = tried()
        assert lost is None or (fault.happened and not lost.by_limits), fault
        assert (descriptors(), offspring()) == (before, children), fault


PARENT = """
import time
from model.images.client import ImageProcess
print(ImageProcess(1000).pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_it_dies_with_its_parent(*, stopped: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        if stopped:
            strike(pid, 19)
        os.kill(started.pid, 9)
        started.wait()
        eventually(lambda: ended(pid), "the child has died with its parent")
