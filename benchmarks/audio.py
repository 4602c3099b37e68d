"""Seconds of processor time from 30 s of audio to a mel spectrum, for each kind of file.

    python -m benchmarks.audio --runs 5

The audio is stereo at 48 kHz: a gliding voice with noise. Each run decodes the files in turn, and each number is the
median of the runs. One thread computes, as in the process that decodes audio.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before the import of NumPy

import argparse
import time
from io import BytesIO
from statistics import median

import numpy as np
import soundfile
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from model.audio.decode import decode
from model.audio.mel import log_mel

RATE, SECONDS, N_MELS = 48_000, 30, 128
KINDS = {
    "WAV": ("WAV", "PCM_16"),
    "FLAC": ("FLAC", "PCM_16"),
    "OGG Vorbis": ("OGG", "VORBIS"),
    "OGG Opus": ("OGG", "OPUS"),
    "MP3": ("MP3", "MPEG_LAYER_III"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    files = {kind: saved(*names) for kind, names in KINDS.items()}
    runs = [{kind: timed(data) for kind, data in files.items()} for _ in range(parser.parse_args().runs)]
    table = Table("file", "KiB", "decode and resample, s", "mel, s", title=f"{SECONDS} s, stereo, {RATE} Hz")
    for kind, data in files.items():
        decoding, spectrum = (median(run[kind][n] for run in runs) for n in (0, 1))
        table.add_row(kind, str(len(data) // 1024), f"{decoding:.3f}", f"{spectrum:.3f}")
    Console().print(table)


def voice(seconds: int, rate: int, seed: int) -> NDArray[np.float64]:
    """A gliding voice with noise. Another seed is another recording."""
    at = np.arange(seconds * rate) / rate
    tones = sum(np.sin(2 * np.pi * n * (120 * at + 20 * np.sin(at))) / n for n in range(1, 20))
    return 0.1 * np.asarray(tones) + np.random.default_rng(seed).normal(0, 0.02, len(at))


def saved(format: str, subtype: str) -> bytes:
    """The audio as a file."""
    samples = np.stack([voice(SECONDS, RATE, seed) for seed in range(2)], axis=1)
    file = BytesIO()
    with soundfile.SoundFile(file, "w", RATE, 2, subtype, format=format) as out:
        for start in range(0, len(samples), RATE):  # more at once than Vorbis can take ends the process
            out.write(samples[start : start + RATE])
    return file.getvalue()


def timed(data: bytes) -> tuple[float, float]:
    """Seconds to decode a file, and to compute its spectrum."""
    began = time.process_time()
    samples = decode(data, SECONDS)
    decoded = time.process_time()
    log_mel(samples, N_MELS)
    return decoded - began, time.process_time() - decoded


if __name__ == "__main__":
    main()
