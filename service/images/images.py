"""Images of requests, decoded in a child process: a hostile image may kill that process, and nothing else."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from model.errors import ImageError
from model.image_spans import ImageFormat
from model.images.client import ImageProcess
from model.machine.helper import ATTEMPTS, ProcessLost
from service.http.errors import InvalidRequest, Unavailable
from service.images.source import Source

CACHE_BYTES = 64 * 2**20
"""Pixels that are kept: a conversation sends its images again with each request."""
REQUESTS = 4
"""As many requests may have images decoded that the engine's queue does not count yet: pixels can be far larger than a
request's body."""
TOO_MUCH = "takes too much time or memory to decode"


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """RGB bytes [rows * token_side, columns * token_side, 3]. Equal digests have equal sizes and pixels."""

    rows: int
    columns: int
    digest: str
    pixels: bytes = field(repr=False)


Key = tuple[bytes, ImageFormat]
"""The digest of an image file, and the format that it was decoded for."""


class Recent:
    """The images that were used last, as many as fit in `n_bytes`."""

    def __init__(self, n_bytes: int = CACHE_BYTES) -> None:
        self._images: OrderedDict[Key, DecodedImage] = OrderedDict()
        self._left = n_bytes

    def find(self, key: Key) -> DecodedImage | None:
        if key in self._images:
            self._images.move_to_end(key)
        return self._images.get(key)

    def note(self, key: Key, image: DecodedImage) -> None:
        if key not in self._images:
            self._images[key] = image
            self._left -= len(image.pixels)
        while self._left < 0:
            self._left += len(self._images.popitem(last=False)[1].pixels)


class Images:
    """The decoder of images. It decodes one at a time, and keeps the last ones. One per server.

    A thread of its own talks to the process, because the process dies with the thread that starts it. The process
    starts at the first image. `on_decoded` gets the seconds from an image's turn to its pixels.
    """

    def __init__(
        self,
        max_images: int,
        max_pixels: int,
        on_restart: Callable[[], None] = lambda: None,
        on_decoded: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._max_images = max_images
        self._max_pixels = max_pixels
        self._on_restart = on_restart
        self._on_decoded = on_decoded
        self._recent = Recent()
        self._turns = asyncio.Semaphore(REQUESTS)
        self._thread = ThreadPoolExecutor(1, "noria-images")
        self._thread.submit(int)  # start the thread now: later the system may allow no more threads
        self._process: ImageProcess | None = None
        self._closed = False

    async def decode(self, sources: Sequence[Source], format: ImageFormat) -> list[DecodedImage]:
        """The pixels of a request's images, resized for the model.

        Raises InvalidRequest, naming the field, for an image that cannot be used; Unavailable without a process.
        """
        if len(sources) > self._max_images:
            message = f"a request may have at most {self._max_images} images (--max-images), got {len(sources)}"
            raise InvalidRequest(message, param=sources[self._max_images].param)
        async with self._turns:
            return [await self._one(source, format) for source in sources]  # others' images come between

    async def close(self) -> None:
        """End the process and the thread."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown(wait=False)

    async def _one(self, source: Source, format: ImageFormat) -> DecodedImage:
        key = (source.digest, format)
        if (found := self._recent.find(key)) is not None:
            return found
        image, seconds = await asyncio.get_running_loop().run_in_executor(self._thread, self._timed, source, format)
        self._recent.note(key, image)
        self._on_decoded(seconds)
        return image

    def _timed(self, source: Source, format: ImageFormat) -> tuple[DecodedImage, float]:
        began = time.monotonic()
        image = self._decoded(source, format)
        return image, time.monotonic() - began

    def _decoded(self, source: Source, format: ImageFormat) -> DecodedImage:
        """The image. Raises InvalidRequest and Unavailable.

        A process that exceeds its limits, and then a fresh one that does too, say something of the image. Any other end
        of a process says nothing.
        """
        losses, suspected = 0, False
        while losses < ATTEMPTS and not self._closed:
            try:
                pixels = self._running().decode(source.data, format)
            except ImageError as error:
                raise _refusal(source, str(error)) from None
            except ProcessLost as lost:
                if not lost.by_limits:
                    losses += 1
                elif suspected:
                    raise _refusal(source, TOO_MUCH) from None
                else:
                    suspected = True
            else:
                digest = hashlib.blake2b(f"{pixels.rows} {pixels.columns} ".encode(), digest_size=16)
                digest.update(pixels.pixels)
                return DecodedImage(pixels.rows, pixels.columns, digest.hexdigest(), pixels.pixels)
        raise Unavailable("the process that decodes images was lost; try again", "image_unavailable")

    def _running(self) -> ImageProcess:
        """The process; a new one if it has ended. Raises CannotStart."""
        before = self._process
        if before is not None:
            if not before.ended:
                return before
            before.end()
        self._process = ImageProcess(self._max_pixels)
        if before is not None:
            self._on_restart()
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()


def _refusal(source: Source, problem: str) -> InvalidRequest:
    return InvalidRequest(f"the image in {source.param} {problem}", param=source.param, code="invalid_image")
