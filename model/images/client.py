"""The parent's side of the process that decodes images (`model/images/process.py`). Does not need Pillow."""

from dataclasses import asdict

from model.errors import ImageError
from model.images.sizes import Pixels
from model.machine.helper import ONE_ARENA, First, HelperProcess
from model.media import ImageFormat


class ImageProcess(HelperProcess):
    """A ready process. One thread uses it; any thread may call `kill`.

    `max_pixels` is the limit for an image. A `patient` process gives it more time (`process.LONG`).
    """

    def __init__(self, max_pixels: int, *, patient: bool = False) -> None:
        """Start it and wait until it is ready. Raises CannotStart."""
        first = First({"max_pixels": max_pixels, "patient": patient})
        super().__init__("model.images.process", "decodes images", first, environment=ONE_ARENA)

    def decode(self, data: bytes, format: ImageFormat) -> Pixels:
        """The pixels of an image file. Raises ImageError, and ProcessLost."""
        answer, pixels = self.exchange(asdict(format), data)
        if "problem" in answer:
            raise ImageError(answer["problem"])
        return Pixels(answer["rows"], answer["columns"], pixels)
