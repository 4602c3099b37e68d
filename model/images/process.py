"""The process that decodes images. If an image hangs or crashes it, nothing else is harmed.

    python -m model.images.process SOCKET

The argument is the file descriptor of a socket, which carries frames (`model/machine/frames.py`). `client.py` has its
other end. The first frame has the limit of pixels, and whether an image gets the longer limit of time. The answer says
whether the system allows less memory than the limit here. Each further frame is an image file and its format; the
answer is what is wrong with it, or its pixels.
"""

import contextlib
import socket
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

from model.errors import ImageError
from model.images.decode import decode
from model.machine.frames import receive, send
from model.machine.host import return_free_memory
from model.machine.limits import Timer, limit_memory, run
from model.media import ImageFormat


class TimeLimit(NamedTuple):
    """Processor time for an image: a part for its file and its header, and a part for each of its pixels."""

    seconds: float
    pixel_seconds: float


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
    """Limit of memory for an image, in bytes, beyond what the process has before."""
    return DECODE_BYTES + PIXEL_BYTES * max_pixels


def main(sock: socket.socket) -> None:
    """Serve until the socket closes."""
    warnings.simplefilter("ignore")  # Pillow's, on damaged metadata: the reason of an end must stand last on stderr
    timer = Timer()
    first, _ = receive(sock)
    max_pixels, limit = first["max_pixels"], LONG if first["patient"] else SHORT
    send(sock, {"limited": not limit_memory(memory(max_pixels))})
    with contextlib.suppress(ConnectionError):
        while True:
            fields, data = receive(sock)
            with limited(timer, limit) as add_pixels:
                answer, pixels = _answer(data, ImageFormat(**fields), max_pixels, add_pixels)
            send(sock, answer, pixels)
            return_free_memory()  # a large image would leave hundreds of MiB with this process


@contextlib.contextmanager
def limited(timer: Timer, limit: TimeLimit) -> Iterator[Callable[[int], None]]:
    """Limit the block's processor time. The function adds the time for the pixels of an image, once they are known."""
    with contextlib.ExitStack() as tasks:
        tasks.enter_context(timer.task(limit.seconds))
        yield lambda n_pixels: tasks.enter_context(timer.task(limit.pixel_seconds * n_pixels))


def _answer(
    data: bytes, format: ImageFormat, max_pixels: int, on_size: Callable[[int], None]
) -> tuple[dict[str, object], bytes]:
    try:
        rows, columns, pixels = decode(data, format, max_pixels, on_size)
    except ImageError as error:
        return {"problem": str(error)}, b""
    return {"rows": rows, "columns": columns}, pixels


if __name__ == "__main__":
    run(main, STACK_BYTES)
