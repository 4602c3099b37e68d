"""A thread and the process with which it decodes images, one at a time."""

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from model.image_spans import ImageFormat
from model.images.client import ImageProcess
from model.machine.helper import ATTEMPTS, ProcessLost
from service.errors.errors import Unavailable


class LimitsExceeded(Exception):
    """The process has ended itself: the image takes more time or memory than it may."""


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """RGB bytes [rows * token_side, columns * token_side, 3]. Equal digests have equal sizes and pixels."""

    rows: int
    columns: int
    digest: str
    pixels: bytes = field(repr=False)


class Decoder:
    """Decodes images in a child process, which starts at the first one. `on_restart` hears when one replaces another.

    A thread of its own talks to the process, because the process dies with the thread that starts it. A `patient`
    decoder gives an image more time, and starts a process for each.
    """

    def __init__(
        self, max_pixels: int, on_restart: Callable[[], None] = lambda: None, *, patient: bool = False
    ) -> None:
        self._max_pixels = max_pixels
        self._on_restart = on_restart
        self._patient = patient
        self._thread = ThreadPoolExecutor(1, "noria-images")
        self._thread.submit(int)  # start the thread now: later the system may allow no more threads
        self._process: ImageProcess | None = None
        self._closed = False

    async def decode(self, data: bytes, format: ImageFormat) -> DecodedImage:
        """The pixels of an image file. Raises ImageError, LimitsExceeded, and Unavailable without a process."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._decoded, data, format)

    async def close(self) -> None:
        """End the process and the thread."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown(wait=False)

    def _decoded(self, data: bytes, format: ImageFormat) -> DecodedImage:
        losses = 0
        while losses < ATTEMPTS and not self._closed:
            try:
                pixels = self._running().decode(data, format)
            except ProcessLost as lost:
                if lost.by_limits:
                    raise LimitsExceeded from None
                losses += 1  # any other end of a process says nothing of the image
            else:
                digest = hashlib.blake2b(f"{pixels.rows} {pixels.columns} ".encode(), digest_size=16)
                digest.update(pixels.pixels)
                return DecodedImage(pixels.rows, pixels.columns, digest.hexdigest(), pixels.pixels)
            finally:
                if self._patient:
                    self._end()
        raise Unavailable("the process that decodes images was lost; try again", "image_unavailable")

    def _running(self) -> ImageProcess:
        """The process; a new one if it has ended. Raises CannotStart."""
        before = self._process
        if before is not None:
            if not before.ended:
                return before
            before.end()
        self._process = ImageProcess(self._max_pixels, patient=self._patient)
        if before is not None:
            self._on_restart()
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
