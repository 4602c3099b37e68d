"""The process that decodes images (`model/machine/decoding.py`). The largest size is the limit of pixels.

python -m model.images.process SOCKET
"""

import warnings

from model.images.decode import decode
from model.machine.decoding import ChildLimits, Fields, OnSize, TimeLimit, run_decoder
from model.media import ImageFormat

LIMITS = ChildLimits(short=TimeLimit(0.25, 0.02e-6), long=TimeLimit(1.0, 0.15e-6), unit_bytes=24)
"""A photograph needs up to 0.02e-6 s a pixel, and what takes longest 0.035e-6 s (docs/images.md). An image beyond the
short limit is decoded apart: other images do not wait for it. Pillow's pixels have 4 bytes; some readers and steps hold
several copies."""


def pixels(data: bytes, format: Fields, max_pixels: int, on_size: OnSize) -> tuple[Fields, bytes]:
    """Return rows and columns of tokens of an image file, and its pixels. Raises MediaError."""
    decoded = decode(data, ImageFormat(**format), max_pixels, on_size)
    return {"rows": decoded.rows, "columns": decoded.columns}, decoded.pixels


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Pillow's, on damaged metadata: the reason of an end must stand last on stderr
    run_decoder("noria-images", LIMITS, pixels)
