"""The process that decodes images (`model/machine/decoding.py`). `client.py` has the other end of its socket.

    python -m model.images.process SOCKET

The argument is the file descriptor of the socket. The largest size is the limit of pixels.
"""

import socket
import warnings

from model.images.decode import decode
from model.machine.decoding import ChildLimits, Fields, OnSize, TimeLimit, serve
from model.machine.limits import run
from model.media import ImageFormat

SHORT = TimeLimit(0.25, 0.02e-6)
LONG = TimeLimit(1.0, 0.15e-6)
"""A photograph needs up to 0.02e-6 s a pixel, and what takes longest 0.035e-6 s (docs/images.md). An image beyond SHORT
is decoded apart: other images do not wait for it."""
DECODE_BYTES = 64 * 2**20
PIXEL_BYTES = 24
"""Limits of memory: a part for each image, and a part for each pixel that it may have. Pillow's pixels have 4 bytes;
some readers and steps hold several copies."""
STACK_BYTES = 8 * 2**20


def memory(max_pixels: int) -> int:
    """Return the limit of memory for an image, in bytes, beyond what the process has before."""
    return DECODE_BYTES + PIXEL_BYTES * max_pixels


def pixels(data: bytes, format: Fields, max_pixels: int, on_size: OnSize) -> tuple[Fields, bytes]:
    """Return rows and columns of tokens of an image file, and its pixels. Raises ImageError."""
    decoded = decode(data, ImageFormat(**format), max_pixels, on_size)
    return {"rows": decoded.rows, "columns": decoded.columns}, decoded.pixels


def main(sock: socket.socket) -> None:
    """Serve until the socket closes."""
    warnings.simplefilter("ignore")  # Pillow's, on damaged metadata: the reason of an end must stand last on stderr
    serve(sock, ChildLimits(SHORT, LONG, memory), pixels)


if __name__ == "__main__":
    run(main, STACK_BYTES, "noria-images")
