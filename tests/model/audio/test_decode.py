"""From files to samples, against soundfile and soxr by hand, as mistral-common calls them."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from model.audio.decode import BLOCK, decode
from model.audio.sizes import RATE
from model.errors import MediaError
from tests.model.audio.files import SPOKEN, SUBTYPES, damaged, saved, speech, wav, without_length

LONG = 3600


def theirs(data: bytes) -> np.ndarray:
    """The file at once, the mean of its channels, resampled at once."""
    samples, rate = soundfile.read(BytesIO(data), dtype="float32", always_2d=True)
    return soxr.resample(samples.mean(axis=1), rate, RATE, quality="HQ")


@pytest.mark.parametrize("kind", SUBTYPES)
@pytest.mark.parametrize("n_channels", [1, 2])
def test_blocks_give_what_the_whole_file_gives(kind: str, n_channels: int) -> None:
    """A tone of one channel makes MP3 keep bits for later: a seek between two blocks loses them."""
    tone = np.sin(2 * np.pi * 1000 * np.arange(4 * 48_000) / 48_000)[:, None].astype(np.float32) / 2
    data = saved(tone if n_channels == 1 else speech(4, 48_000, 2), 48_000, kind)
    found = decode(data, LONG)
    assert len(found) == 4 * RATE > 4 * RATE * BLOCK / (4 * 48_000), "there are several blocks"
    assert found.dtype == np.float32
    assert np.abs(found - theirs(data)).max() < 1e-6


@pytest.mark.parametrize("rate", [4_000, 8_000, 11_025, 16_000, 22_050, 44_100, 96_000, 384_000])
def test_any_rate_is_resampled(rate: int) -> None:
    data = saved(speech(2, rate), rate)
    assert (found := decode(data, LONG)).shape == (2 * RATE,)
    assert (found == theirs(data)).all()


@pytest.mark.parametrize("kind", SUBTYPES)
def test_what_is_heard_is_what_was_said(kind: str) -> None:
    """A codec changes samples a little and may delay them; their loudest frequency stays."""
    tone = np.sin(2 * np.pi * 1000 * np.arange(96_000) / 48_000)[:, None].astype(np.float32) / 2
    power = np.abs(np.fft.rfft(decode(saved(tone, 48_000, kind), LONG)[8_000:24_000]))
    assert power.argmax() == 1000
    assert power.max() == pytest.approx(0.25 * 16_000, rel=0.05)


@pytest.mark.parametrize("path", SPOKEN, ids=lambda path: path.suffix)
def test_speech_in_files_of_other_programs(path: Path) -> None:
    """An encoder fills the last frame up and delays what it hears: a decoder cuts off both, to a sample in Opus."""
    first, *others = SPOKEN
    assert (first.suffix, len(others)) == (".flac", 3)
    whole, found = (decode(file.read_bytes(), LONG) for file in (first, path))
    assert len(found) == len(whole) == round(88_078 * RATE / 22_050)
    shifted = np.roll(found, path.suffix == ".opus")
    assert np.corrcoef(shifted, whole)[0, 1] > 0.98


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
def test_codings_of_wav(subtype: str) -> None:
    samples = speech(1)
    found = decode(saved(samples, subtype=subtype), LONG)[:RATE]
    assert np.abs(found - samples[:, 0]).max() < 0.1


def test_channels_are_averaged() -> None:
    left, right = speech(1), speech(1, seed=1)
    found = decode(saved(np.concatenate([left, right], axis=1), subtype="FLOAT"), LONG)
    assert np.abs(found - (left + right)[:, 0] / 2).max() < 1e-7


def test_the_work_is_known_before_it_begins() -> None:
    """A second of stereo has two samples of the file a frame, and one that is heard for each at 16 kHz."""
    heard: list[int] = []
    decode(saved(speech(2, 48_000, 2), 48_000), LONG, heard.append)
    assert heard == [2 * (2 * 48_000 + 16_000)]


@pytest.mark.parametrize("size", [0xFFFF_FFFF, 0x7FFF_F024])
def test_a_wav_file_from_a_pipe_is_read_to_its_end(size: int) -> None:
    """FFmpeg and SoX write these sizes where they cannot go back to the header."""
    assert len(decode(wav(riff_size=size, data_size=size), LONG)) == 1600


def test_a_wav_file_may_count_its_first_8_bytes_too() -> None:
    assert len(decode(wav(riff_size=3244), LONG)) == 1600


def cut(data: bytes) -> bytes:
    return data[: len(data) * 3 // 4]


def test_files_without_a_length_are_read_as_far_as_they_go() -> None:
    """As players do: a recorder may stop at any time."""
    mp3 = without_length(saved(speech(4), kind="MP3", bitrate_mode="CONSTANT", compression_level=0.6))
    for data in (saved(speech(4), kind="VORBIS"), saved(speech(4), kind="OPUS"), mp3):
        assert 1 < len(decode(cut(data), LONG)) / RATE < 4


@pytest.mark.parametrize(
    "data",
    [
        damaged(saved(speech(20), kind="VORBIS"), 1),
        damaged(saved(speech(20), kind="OPUS"), 1),
        damaged(saved(speech(20), kind="FLAC"), 1),
        damaged(saved(speech(20), kind="MP3"), 5_000),
        damaged(without_length(saved(speech(60), kind="MP3", bitrate_mode="CONSTANT", compression_level=0.6)), 5_000),
        cut(saved(speech(4), kind="MP3")),
    ],
    ids=["Vorbis", "Opus", "FLAC", "MP3", "MP3 without length", "MP3 that is cut"],
)
def test_no_part_of_a_file_is_left_out(data: bytes) -> None:
    """libsndfile leaves a page out whose checksum is wrong, and libmpg123 gives up behind what is no frame."""
    with pytest.raises(MediaError, match="is damaged or truncated"):
        decode(data, LONG)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "VORBIS", "MP3"])
def test_bytes_after_the_end_do_not_matter(kind: str) -> None:
    data = saved(speech(1), kind=kind)
    for tail in (b"TAG" + bytes(125), b"APETAGEX" + bytes(10_000), bytes(100_000)):
        assert (decode(data + tail, LONG) == decode(data, LONG)).all()
