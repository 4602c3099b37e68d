"""The process that decodes audio (`model/machine/decoding.py`). The largest size is the limit of seconds for any model.

python -m model.audio.process SOCKET
"""

from model.audio.decode import decode, seconds
from model.audio.mel import log_mel
from model.audio.sizes import RATE, MelFormat
from model.machine.decoding import ChildLimits, Fields, OnSize, TimeLimit, run_decoder

LIMITS = ChildLimits(short=TimeLimit(0.25, 0.25e-6), long=TimeLimit(1.0, 1e-6), unit_bytes=2**18)
"""Opus takes longest: 0.1e-6 s for each sample, its own and those at 16 kHz (docs/audio.md). Audio beyond the short
limit is decoded apart: other audio does not wait for it. A second has 64,000 bytes of samples and 51,200 of its
spectrum, and there are two copies of each."""


def mel(data: bytes, format: Fields, max_seconds: int, on_size: OnSize) -> tuple[Fields, bytes]:
    """Return chunks and seconds of an audio file, and its spectrum unless `n_mels` is 0. Raises MediaError."""
    expected = MelFormat(**format)
    limit = min(expected.max_seconds, max_seconds)
    if not expected.n_mels:
        return {"n_chunks": 0, "seconds": seconds(data, limit)}, b""
    samples = decode(data, limit, on_size)
    spectrum = log_mel(samples, expected.n_mels)
    return {"n_chunks": len(spectrum), "seconds": len(samples) / RATE}, spectrum.tobytes()


if __name__ == "__main__":
    run_decoder("noria-audio", LIMITS, mel)
