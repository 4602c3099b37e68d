"""The process that decodes audio, as its parent sees it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model.audio.decode import decode
from model.audio.mel import log_mel
from model.audio.process import LIMITS
from model.audio.sizes import MelFormat
from model.errors import MediaError
from model.machine.decoding import DecodingProcess
from model.machine.helper import ProcessLost
from tests.model.audio.files import saved, slow, speech

FORMAT = MelFormat(n_mels=128, max_seconds=60)
MAX_SECONDS = 600


@pytest.fixture
def process() -> Iterator[DecodingProcess]:
    started = DecodingProcess("audio", MAX_SECONDS)
    yield started
    started.end()


def test_the_spectrum_comes_back_as_it_was_computed(process: DecodingProcess) -> None:
    for seconds, n_chunks in ((1, 1), (45, 2), (1, 1)):
        data = saved(speech(seconds, 44_100, 2), 44_100, "VORBIS")
        answer, spectrum = process.decode(data, FORMAT)
        assert answer == {"n_chunks": n_chunks, "seconds": seconds}
        assert spectrum == log_mel(decode(data, 60), 128).tobytes()


def test_a_bad_file_is_an_answer(process: DecodingProcess) -> None:
    long = saved(np.zeros(4000 * 700, np.float32), 4000, "FLAC")
    with pytest.raises(MediaError, match=r"lasts 700\.0 s; the limit is 60 s"):
        process.decode(long, FORMAT)
    with pytest.raises(MediaError, match=r"lasts 700\.0 s; the limit is 600 s"):
        process.decode(long, MelFormat(128, 10**6))
    with pytest.raises(MediaError, match="is no WAV"):
        process.decode(b"", FORMAT)
    assert process.decode(saved(speech(1)), FORMAT)[0]["n_chunks"] == 1


def test_the_longest_audio_fits_into_the_memory(process: DecodingProcess) -> None:
    """What compresses best, at the limit of seconds."""
    data = saved(np.zeros(16_000 * MAX_SECONDS, np.float32), kind="FLAC")
    assert len(data) < 2**18
    assert process.decode(data, MelFormat(128, MAX_SECONDS))[0]["n_chunks"] == 20


def test_audio_that_takes_too_much_memory_ends_it(process: DecodingProcess) -> None:
    """A file that is as large as the limit of memory."""
    with pytest.raises(ProcessLost) as caught:
        process.decode(saved(speech(1)) + bytes(LIMITS.memory(MAX_SECONDS)), FORMAT)
    assert caught.value.by_limits


def test_audio_that_takes_too_long_ends_it(process: DecodingProcess) -> None:
    with pytest.raises(ProcessLost, match="SIGPROF") as caught:
        process.decode(slow(), FORMAT)
    assert caught.value.by_limits


def test_the_first_file_finds_the_libraries_loaded(process: DecodingProcess) -> None:
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "libsndfile" in maps
    assert "soxr" in maps
