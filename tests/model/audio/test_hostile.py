"""Files that lie, are damaged or want too much: each gives samples or an error that says why."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from model.audio.decode import UNKNOWN, decode
from model.errors import MediaError
from tests.model.audio.files import (
    SUBTYPES,
    id3,
    saved,
    speech,
    variable_without_length,
    wav,
    with_total,
    without_last_page,
)

SECOND = speech(1)
NOISE = np.random.default_rng(0).bytes(200_000)
FRAME = b"\xff\xfb\x90\x64"
"""The header of a frame of MP3."""


def refused(data: bytes, max_seconds: float = 100) -> str:
    with pytest.raises(MediaError) as caught:
        decode(data, max_seconds)
    assert "\n" not in str(caught.value)
    return str(caught.value)


OTHERS: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"\xff",
    "text": b"hello world " * 100,
    "M4A": b"\0\0\0\x20ftypM4A \0\0\0\0M4A mp42isom\0\0\0\0" + NOISE,
    "WebM": b"\x1aE\xdf\xa3\x9fB\x86\x81\1B\xf7\x81\1B\xf2\x81\4B\xf3\x81\x08B\x82\x84webm" + NOISE,
    "AIFF": b"FORM\0\0\0\x2eAIFFCOMM\0\0\0\x12\0\1\0\0\0\0\0\x10\x40\x0c\xfa\0\0\0\0\0\0\0SSND" + NOISE,
    "AU": b".snd\0\0\0\x18\xff\xff\xff\xff\0\0\0\3\0\0\x3e\x80\0\0\0\1" + NOISE,
    "AVI": b"RIFF\xff\xff\0\0AVI LIST" + NOISE,
    "PNG": b"\x89PNG\r\n\x1a\n" + NOISE,
    "HTML": b"<!DOCTYPE html><html></html>",
    "noise": NOISE,
    "MP3 that is noise": FRAME + NOISE,
    "AAC": b"\xff\xf1\x50\x80" + NOISE,
    "WAV without data": wav()[:12],
    "WAV of 0 channels": wav(n_channels=0),
    "WAV of 65535 channels": wav(n_channels=65_535),
    "WAV of 0 Hz": wav(rate=0),
    "WAV of -1 Hz": wav(rate=2**32 - 1),
    "WAV of 0 bits": wav(bits=0),
    "WAV of 33 bits": wav(bits=33),
    "WAV of an unknown coding": wav(tag=0x7777),
    "ID3 alone": id3(1000),
    "ID3 that lies": b"ID3\4\0\0\x7f\x7f\x7f\x7f" + saved(SECOND, kind="MP3"),
    "ID3 before AIFF": id3(10) + b"FORM\0\0\0\x2eAIFFCOMM" + NOISE,
    "FLAC's mark": b"fLaC",
    "FLAC that is noise": b"fLaC" + NOISE,
    "OGG's mark": b"OggS",
    "OGG that is noise": b"OggS\0\2" + NOISE,
    "OGG of its first page": saved(SECOND, kind="VORBIS")[:58],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_told_what_is_read(name: str) -> None:
    assert refused(OTHERS[name]) == UNKNOWN == "is no WAV, FLAC, OGG or MP3 file, or its header is damaged"


FLAC = saved(SECOND, kind="FLAC")
LIARS: dict[str, tuple[Callable[[], bytes], str]] = {
    "WAV of 1 Hz": (lambda: wav(rate=1), "has 1 samples a second; the limits are 4000 and 384000"),
    "WAV of 2 GHz": (lambda: wav(rate=2**31 - 1), "has 2147483647 samples a second; the limits are 4000 and 384000"),
    "WAV of 9 channels": (lambda: wav(n_channels=9), "has 9 channels; the limit is 8"),
    "WAV of 1000 channels": (lambda: wav(n_channels=1000, bits=8), "has 1000 channels; the limit is 8"),
    "WAV with no data": (lambda: wav(data=b""), "has no samples"),
    "WAV whose data have size 0": (lambda: wav(data_size=0), "has no samples"),
    "WAV that is cut": (lambda: wav()[:1000], "is truncated: it has 1000 of the 3244 bytes in its header"),
    "WAV that ends before its data": (lambda: wav()[:44], "is truncated: it has 44 of the 3244 bytes in its header"),
    "NaN": (
        lambda: saved(np.where(np.arange(16_000) == 9, np.nan, 0.0), subtype="DOUBLE"),
        "has samples that are no finite numbers",
    ),
    "infinity": (
        lambda: saved(np.where(np.arange(48_000) == 9, -np.inf, 0.0), 48_000, subtype="FLOAT"),
        "has samples that are no finite numbers",
    ),
    "too large for float32": (
        lambda: saved(np.full(16_000, 1e300), subtype="DOUBLE"),
        "has samples that are no finite numbers",
    ),
    "FLAC of 49 days": (lambda: with_total(FLAC, 2**36 - 1), "lasts 4294967.3 s; the limit is 100 s"),
    "FLAC that promises more": (
        lambda: with_total(FLAC, 17_000),
        "is damaged or truncated: 16000 of its 17000 frames can be read",
    ),
    "FLAC that is cut": (lambda: FLAC[:-1000], "is damaged or truncated: flac decoder lost sync."),
    "OGG twice": (lambda: 2 * saved(SECOND, kind="OPUS"), "has 2 streams; the limit is 1"),
    "MP3 without its length": (variable_without_length, "does not end after the"),
    "an hour of silence in 18 KB": (
        lambda: saved(np.zeros(4000 * 3600, np.float32), 4000, "FLAC"),
        "lasts 3600.0 s; the limit is 100 s",
    ),
}


@pytest.mark.parametrize("name", LIARS)
def test_a_lying_file_is_told_what_is_wrong(name: str) -> None:
    make, message = LIARS[name]
    assert refused(make()).startswith(message)


def test_seconds_are_counted_while_they_are_decoded() -> None:
    """An MP3 file's length may be a guess, so the header is not believed."""
    data = saved(speech(10), kind="MP3")
    assert refused(data, 9.9) == "lasts 10.0 s; the limit is 9.9 s"
    cut = data[data.index(data[:2], 400) :]  # without Xing's header
    with suppress(MediaError):
        assert len(decode(cut, 9.9)) <= 9.9 * 16_000


def test_a_flac_file_from_a_pipe_is_read_to_its_end() -> None:
    """It has no length in its header."""
    assert (decode(with_total(FLAC, 0), 1) == decode(FLAC, 1)).all()
    assert refused(with_total(FLAC, 0), 0.9) == "lasts 1.0 s; the limit is 0.9 s"


def test_what_is_odd_but_honest_is_decoded() -> None:
    assert len(decode(wav(n_channels=8, rate=48_000, data=bytes(16 * 48_000)), 1)) == 16_000
    assert len(decode(wav(rate=384_000, data=bytes(2 * 384_000)), 1)) == 16_000
    assert len(decode(with_total(FLAC, 8_000), 1)) == 8_000
    assert len(decode(id3(10 * 2**20) + saved(SECOND, kind="MP3"), 2)) == 16_000
    for kind in ("VORBIS", "OPUS"):
        assert len(decode(without_last_page(saved(speech(3), kind=kind)), 3)) > 16_000
    assert not decode(wav(), 1).any()


@pytest.mark.parametrize("kind", SUBTYPES)
def test_a_damaged_file_is_audio_or_an_error(kind: str) -> None:
    """Cut, and with a byte inverted, at many places."""
    data = saved(speech(0.3), kind=kind)
    for place in {*range(0, 200, 7), *range(0, len(data), 97)} & {*range(len(data))}:
        for damaged in (data[:place], data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]):
            with suppress(MediaError):
                assert np.isfinite(decode(damaged, 1)).all()
