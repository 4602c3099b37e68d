"""The log-mel spectrum of Whisper's encoder (Radford et al., 2022, section 2.2), as Voxtral takes it.

Fourier transforms are computed in float64: in float32 quiet bins beside a loud tone lose three digits.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from model.audio.sizes import CHUNK_FRAMES, CHUNK_SAMPLES, HOP, N_FFT, RATE, chunks

MARGIN = N_FFT // 2
"""Samples on each side of the middle of a frame. The audio is mirrored at its ends by as many."""
FLOOR = 1e-10
DECADES = 8.0
"""Values that are this many decades below the largest of the whole audio are raised to there."""
LINEAR_HZ, LINEAR_MELS, LOG_STEP = 1000.0, 15.0, np.log(6.4) / 27
"""Slaney's mel scale: 3 mels for each 200 Hz below 1000 Hz, then 27 mels for each factor of 6.4."""

Floats = NDArray[np.float64]


def log_mel(samples: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Compute the spectrum [n_chunks, n_mels, CHUNK_FRAMES] of mono `samples` [n] at RATE, padded to whole chunks.

    It takes memory for one chunk beside its result and a copy of the samples.
    """
    n_chunks = chunks(len(samples))
    frames = sliding_window_view(_mirrored(samples, n_chunks * CHUNK_SAMPLES), N_FFT)[::HOP]  # [frames + 1, N_FFT]
    window = 0.5 - 0.5 * np.cos(2 * np.pi / N_FFT * np.arange(N_FFT))  # Hann's, periodic
    filters = mel_filters(n_mels)
    found = np.empty((n_chunks, n_mels, CHUNK_FRAMES), np.float32)
    for n in range(n_chunks):
        spectrum = np.fft.rfft(frames[n * CHUNK_FRAMES : (n + 1) * CHUNK_FRAMES] * window)  # [CHUNK_FRAMES, bins]
        power = spectrum.real**2 + spectrum.imag**2
        found[n] = np.log10(np.maximum(filters @ power.T, FLOOR))
    np.maximum(found, found.max() - DECADES, out=found)
    found += 4.0
    found /= 4.0
    return found


def mel_filters(n_mels: int) -> Floats:
    """Compute weights [n_mels, bins] of triangles from 0 to RATE / 2 Hz. Each has an area of 1, as Slaney's have."""
    top = LINEAR_MELS + np.log(RATE / 2 / LINEAR_HZ) / LOG_STEP
    corners = _hertz(np.linspace(0.0, top, n_mels + 2))
    low, middle, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    bins = np.linspace(0.0, RATE / 2, N_FFT // 2 + 1)
    triangles = np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle))
    return np.maximum(triangles, 0.0) * 2 / (high - low)


def _hertz(mels: Floats) -> Floats:
    linear = mels * LINEAR_HZ / LINEAR_MELS
    return np.where(mels < LINEAR_MELS, linear, LINEAR_HZ * np.exp((mels - LINEAR_MELS) * LOG_STEP))


def _mirrored(samples: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """Pad samples to `n` with zeros, then mirror MARGIN samples on each side."""
    padded = np.zeros(n + 2 * MARGIN, np.float32)
    padded[MARGIN : MARGIN + len(samples)] = samples
    padded[:MARGIN] = padded[2 * MARGIN : MARGIN : -1]
    padded[-MARGIN:] = padded[-MARGIN - 2 : -2 * MARGIN - 2 : -1]
    return padded
