"""The process that decodes images. If an image hangs or crashes it, nothing else is harmed.

    python -m model.images.process SOCKET

The argument is the file descriptor of a socket, which carries frames (`model/machine/frames.py`). `client.py` has its
other end. The first frame has the limit of pixels; the answer says whether the system allows less memory than the limit
here. Each further frame is an image file and its format; the answer is what is wrong with it, or its pixels.
"""

import contextlib
import socket
import warnings

from model.errors import ImageError
from model.image_spans import ImageFormat
from model.images.decode import decode
from model.machine.frames import receive, send
from model.machine.host import return_free_memory
from model.machine.limits import Timer, limit_memory, run

DECODE_SECONDS = 2.0
PIXEL_SECONDS = 0.25e-6
"""Limits of processor time for an image: a part for each, and a part for each pixel that it may have."""
DECODE_BYTES = 64 * 2**20
PIXEL_BYTES = 24
"""Limits of memory in the same way. Pillow's pixels have 4 bytes; some readers and steps hold several copies."""
STACK_BYTES = 8 * 2**20


def seconds(max_pixels: int) -> float:
    """Limit of processor time for an image."""
    return DECODE_SECONDS + PIXEL_SECONDS * max_pixels


def memory(max_pixels: int) -> int:
    """Limit of memory for an image, in bytes, beyond what the process has before."""
    return DECODE_BYTES + PIXEL_BYTES * max_pixels


def main(sock: socket.socket) -> None:
    """Serve until the socket closes."""
    warnings.simplefilter("ignore")  # Pillow's, on damaged metadata: the reason of an end must stand last on stderr
    timer = Timer()
    first, _ = receive(sock)
    max_pixels = first["max_pixels"]
    send(sock, {"limited": not limit_memory(memory(max_pixels))})
    with contextlib.suppress(ConnectionError):
        while True:
            fields, data = receive(sock)
            with timer.task(seconds(max_pixels)):
                answer, pixels = _answer(data, ImageFormat(**fields), max_pixels)
            send(sock, answer, pixels)
            return_free_memory()  # a large image would leave hundreds of MiB with this process


def _answer(data: bytes, format: ImageFormat, max_pixels: int) -> tuple[dict[str, object], bytes]:
    try:
        rows, columns, pixels = decode(data, format, max_pixels)
    except ImageError as error:
        return {"problem": str(error)}, b""
    return {"rows": rows, "columns": columns}, pixels


if __name__ == "__main__":
    run(main, STACK_BYTES)
