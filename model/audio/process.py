"""The process that decodes audio (`model/machine/decoding.py`). `client.py` has the other end of its socket.

    python -m model.audio.process SOCKET

The argument is the file descriptor of the socket. The largest size is the limit of seconds for any model.
"""

import socket

from model.audio.decode import decode, seconds
from model.audio.mel import log_mel
from model.audio.sizes import RATE, MelFormat
from model.machine.decoding import ChildLimits, Fields, OnSize, TimeLimit, serve
from model.machine.limits import run

SHORT = TimeLimit(0.25, 0.25e-6)
LONG = TimeLimit(1.0, 1e-6)
"""Opus takes longest: 0.1e-6 s for each sample, its own and those at 16 kHz (docs/audio.md). Audio beyond SHORT is
decoded apart: other audio does not wait for it."""
DECODE_BYTES = 64 * 2**20
SECOND_BYTES = 2**18
"""Limits of memory: a part for each file, and a part for each second that it may last. A second has 64,000 bytes of
samples and 51,200 of its spectrum, and there are two copies of each."""
STACK_BYTES = 8 * 2**20


def memory(max_seconds: int) -> int:
    """Return the limit of memory for a file, in bytes, beyond what the process has before."""
    return DECODE_BYTES + SECOND_BYTES * max_seconds


def mel(data: bytes, format: Fields, max_seconds: int, on_size: OnSize) -> tuple[Fields, bytes]:
    """Return chunks and seconds of an audio file, and its spectrum unless `n_mels` is 0. Raises AudioError."""
    expected = MelFormat(**format)
    limit = min(expected.max_seconds, max_seconds)
    if not expected.n_mels:
        return {"n_chunks": 0, "seconds": seconds(data, limit)}, b""
    samples = decode(data, limit, on_size)
    spectrum = log_mel(samples, expected.n_mels)
    return {"n_chunks": len(spectrum), "seconds": len(samples) / RATE}, spectrum.tobytes()


def main(sock: socket.socket) -> None:
    """Serve until the socket closes."""
    serve(sock, ChildLimits(SHORT, LONG, memory), mel)


if __name__ == "__main__":
    run(main, STACK_BYTES, "noria-audio")
