"""Decodes images in a process, one at a time."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from model.image_spans import ImageFormat
from model.images.client import ImageProcess
from service.helpers import HelperThread


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """RGB bytes [rows * token_side, columns * token_side, 3]. Equal digests have equal sizes and pixels."""

    rows: int
    columns: int
    digest: str
    pixels: bytes = field(repr=False)


class Decoder:
    """Decodes images in a child process, which starts at the first one. `on_restart` hears when one replaces another.

    A `patient` decoder gives an image more time, and starts a process for each.
    """

    def __init__(
        self, max_pixels: int, on_restart: Callable[[], None] = lambda: None, *, patient: bool = False
    ) -> None:
        self._max_pixels = max_pixels
        self._patient = patient
        self._helper: HelperThread[ImageProcess] = HelperThread("decodes images", "image_unavailable", on_restart)

    async def decode(self, data: bytes, format: ImageFormat) -> DecodedImage:
        """The pixels of an image file. Raises ImageError, LimitsExceeded, and Unavailable without a process."""
        return await self._helper.run(lambda: self._decoded(data, format))

    async def close(self) -> None:
        """End the process and the thread."""
        await self._helper.close()

    def _decoded(self, data: bytes, format: ImageFormat) -> DecodedImage:
        try:
            pixels = self._helper.use(self._start, lambda process: process.decode(data, format))
        finally:
            if self._patient:
                self._helper.end()
        digest = hashlib.blake2b(f"{pixels.rows} {pixels.columns} ".encode(), digest_size=16)
        digest.update(pixels.pixels)
        return DecodedImage(pixels.rows, pixels.columns, digest.hexdigest(), pixels.pixels)

    def _start(self) -> ImageProcess:
        return ImageProcess(self._max_pixels, patient=self._patient)
