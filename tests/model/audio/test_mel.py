"""The mel spectrum, against transformers' extractor and functions, and numbers on paper."""

from typing import Any

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from model.audio.mel import log_mel, mel_filters
from model.audio.sizes import CHUNK_SAMPLES, chunks
from tests.model.audio.files import Samples, speech

EXTRACTOR = WhisperFeatureExtractor(feature_size=128)
VOXTRAL = {"padding": True, "truncation": False, "pad_to_multiple_of": 480_000, "sampling_rate": 16_000}
"""The arguments of `VoxtralProcessor`, which also cuts the spectrum into chunks in the way of `cut`."""


def cut(spectrum: Any) -> Any:
    """[n_mels, frames] as chunks [n_chunks, n_mels, 3000]."""
    return spectrum.reshape(len(spectrum), -1, 3000).transpose(1, 0, 2)


def precise(samples: Samples, n_mels: int) -> Any:
    """The spectrum by transformers' functions of NumPy, which compute in float64."""
    padded = np.zeros(-(-len(samples) // 480_000) * 480_000, np.float32)
    padded[: len(samples)] = samples
    filters = mel_filter_bank(201, n_mels, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    window = window_function(400, "hann")
    found = spectrogram(padded, window, 400, 160, power=2.0, mel_filters=filters, log_mel="log10")[:, :-1]
    return cut((np.maximum(found, found.max() - 8.0) + 4.0) / 4.0)


def test_filters_are_those_of_transformers() -> None:
    for n_mels in (80, 128):
        theirs = mel_filter_bank(201, n_mels, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
        assert np.abs(mel_filters(n_mels) - theirs.T).max() < 1e-15


@pytest.mark.parametrize("seconds", [0.01, 29.99, 30, 30.01, 75])
def test_the_spectrum_is_that_of_voxtrals_processor(seconds: float) -> None:
    """The extractor computes in float32, which is off by more than 1e-5 in a few quiet bins; ours is not."""
    samples = speech(seconds)[:, 0]
    theirs = cut(EXTRACTOR(samples, return_tensors="np", **VOXTRAL)["input_features"][0])
    ours = log_mel(samples, 128)
    assert ours.shape == theirs.shape == (-(-seconds // 30), 128, 3000)
    assert ours.dtype == np.float32
    exact = precise(samples, 128)
    assert np.abs(ours - exact).max() < 1e-6
    assert (np.abs(ours - theirs) <= 1e-5 + np.abs(theirs - exact)).all()
    assert np.mean(np.abs(ours - theirs) > 1e-5) < 1e-4


@pytest.mark.parametrize(
    "samples",
    [
        np.sin(np.arange(480_001) * 0.173).astype(np.float32),
        np.sin((np.arange(100_000) / 1e3) ** 2).astype(np.float32),
        np.zeros(1000, np.float32),
        np.ones(480_000, np.float32),
        np.eye(1, 16_000, 8_000, dtype=np.float32)[0],
        speech(3)[:, 0] * np.float32(1e-8),
        speech(3)[:, 0] * np.float32(1e4),
    ],
    ids=["tone", "glide", "silence", "constant", "click", "quiet", "loud"],
)
def test_extreme_spectra_are_precise(samples: Samples) -> None:
    """Beside a pure tone the float32 of transformers' extractor is off by 1e-4; its functions of NumPy are not."""
    assert np.abs(log_mel(samples, 128) - precise(samples, 128)).max() < 1e-6


def test_numbers_do_not_overflow() -> None:
    """Any finite samples have a spectrum of finite numbers."""
    assert np.isfinite(log_mel(np.full(1000, np.finfo(np.float32).max), 128)).all()


def test_zeros_fill_the_last_chunk() -> None:
    assert [chunks(n) for n in (1, CHUNK_SAMPLES - 1, CHUNK_SAMPLES, CHUNK_SAMPLES + 1)] == [1, 1, 1, 2]
    samples = speech(31)[:, 0]
    filled = np.concatenate([samples, np.zeros(29 * 16_000, np.float32)])
    assert (log_mel(samples, 80) == log_mel(filled, 80)).all()


def test_the_maximum_is_that_of_the_whole_audio() -> None:
    """8 decades of power below the loudest chunk, 2 units of the spectrum, is the floor of each."""
    loud, silent = speech(30)[:, 0], np.zeros(480_000, np.float32)
    found = log_mel(np.concatenate([loud, silent]), 128)
    assert found[1, :, 10:].max() == found[1, :, 10:].min() == pytest.approx(found.max() - 2, abs=1e-6)
