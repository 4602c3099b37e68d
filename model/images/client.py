"""The parent's side of the process that decodes images (`model/images/process.py`). Does not need Pillow."""

from dataclasses import asdict

from model.errors import ImageError
from model.images.sizes import Pixels
from model.machine.decoding import DecodingProcess
from model.machine.helper import ONE_ARENA
from model.media import ImageFormat


class ImageProcess(DecodingProcess):
    """A ready process. `max_pixels` is the limit for an image."""

    def __init__(self, max_pixels: int, *, patient: bool = False) -> None:
        """Start it and wait until it is ready. Raises CannotStart."""
        module, does = "model.images.process", "decodes images"
        super().__init__(module, does, ImageError, max_pixels, patient=patient, environment=ONE_ARENA)

    def decode(self, data: bytes, format: ImageFormat) -> Pixels:
        """Decode the pixels of an image file. Raises ImageError, and ProcessLost."""
        answer, pixels = self.decoded(data, asdict(format))
        return Pixels(answer["rows"], answer["columns"], pixels)
