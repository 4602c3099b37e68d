"""The mel spectrum of an audio file, its format and its sizes: those of Whisper."""

from dataclasses import dataclass

from model.config.audio import POSITIONS, STRIDE

RATE = 16_000
"""Samples a second that the encoder takes."""
HOP = 160
"""Samples from one frame of the spectrum to the next."""
N_FFT = 400
"""Samples that a frame looks at."""
CHUNK_FRAMES = STRIDE * POSITIONS
"""Frames of a chunk. The encoder takes whole chunks; zeros fill the last one."""
CHUNK_SAMPLES = CHUNK_FRAMES * HOP
CHUNK_SECONDS = CHUNK_SAMPLES / RATE
"""The length of a chunk: 30.0."""


@dataclass(frozen=True, slots=True)
class MelFormat:
    """Mel bins of the spectrum, 0 for the length alone, and the limit of seconds for a file."""

    n_mels: int
    max_seconds: int


def chunks(n_samples: int) -> int:
    """Return how many chunks of 30 s hold `n_samples`. Worked example: 480,001 samples are 2 chunks."""
    return -(-n_samples // CHUNK_SAMPLES)
