"""From the bytes of an audio file to mono samples at the rate of the encoder. Needs soundfile and soxr.

The data may be hostile: this runs in a process of its own (`model/audio/process.py`).
"""

from collections.abc import Callable, Iterator
from io import BytesIO

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from model.audio.sizes import RATE
from model.errors import MediaError

FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")
"""libsndfile's names of what is read. WAVEX is WAV with another header."""
UNKNOWN = "is no WAV, FLAC, OGG or MP3 file, or its header is damaged"
MIN_RATE, MAX_RATE = 4_000, 384_000
MAX_CHANNELS = 8
BLOCK = 2**16
"""Frames that are decoded at a time. A frame has a sample for each channel."""
NO_SIZE = 0x7FFF_0000
"""A WAV file's size from here on means nothing: programs that write into a pipe do not know the size."""
NO_FRAMES = 2**63 - 1
"""libsndfile's length of a FLAC file whose header has none: the file comes from a pipe."""
MP3_GUESS = 8 * 1152
"""Frames by which the length of an MP3 file without Xing's header may be wrong: libmpg123 guesses it by the bytes."""
FIRST_PAGE = b"OggS\0\2"
"""The beginning of a stream in an OGG file (RFC 3533, section 6)."""

Samples = NDArray[np.float32]


class Stream(soundfile.SoundFile):
    """A file that is read once, from its beginning to its end.

    After each block soundfile seeks to where it is, if it can. In MP3 that damages what follows, and in FLAC it fails
    at an end that the header does not tell.
    """

    def seekable(self) -> bool:
        return False


def decode(data: bytes, max_seconds: float, on_size: Callable[[int], None] = lambda n_samples: None) -> Samples:
    """Decode to mono samples [n] at RATE: the mean of all channels, resampled as in mistral-common. Raises MediaError.

    `on_size` gets the number of samples, of the file and of the result, before they are decoded. MemoryError is not
    caught: the limit of memory ends the process.
    """
    source = BytesIO(data)
    with _open(data, source) as file:
        _check(data, file, max_seconds)
        n_frames = min(file.frames, int(max_seconds * file.samplerate))
        on_size(int(n_frames * (file.channels + RATE / file.samplerate)))
        try:
            samples = np.concatenate(list(_resampled(_mono(file, max_seconds), file.samplerate)))
        except soundfile.LibsndfileError as error:
            problem = error.error_string.removeprefix("Error : ")
            raise MediaError(f"is damaged or truncated: {problem}") from None
        if file.format == "MP3" and _is_mpeg(source.read(2)):  # of a variable bit rate, without Xing's header
            raise MediaError(f"does not end after the {file.frames / file.samplerate:.1f} s that its header promises")
    if not len(samples):
        raise MediaError("has no samples")
    if not np.isfinite(samples).all():
        raise MediaError("has samples that are no finite numbers")
    return samples


def seconds(data: bytes, max_seconds: float) -> float:
    """Return the least length of a file by its header; 0 if that does not tell. Raises MediaError as `decode` does."""
    with _open(data, BytesIO(data)) as file:
        _check(data, file, max_seconds)
        guessed = MP3_GUESS if file.format == "MP3" else 0
        return 0.0 if file.frames == NO_FRAMES else max(0, file.frames - guessed) / file.samplerate


def _open(data: bytes, source: BytesIO) -> Stream:
    """Open the file and read its header. No other reader of libsndfile sees the data."""
    if not _is_known(data):
        raise MediaError(UNKNOWN)
    try:
        file = Stream(source)
    except soundfile.LibsndfileError:
        raise MediaError(UNKNOWN) from None
    if file.format not in FORMATS:
        file.close()
        raise MediaError(UNKNOWN)
    return file


def _is_known(data: bytes) -> bool:
    """Return whether the file begins as one of `FORMATS` does."""
    return data[:4] in (b"fLaC", b"OggS") or data[:3] == b"ID3" or _is_mpeg(data) or _is_wav(data)


def _is_mpeg(data: bytes) -> bool:
    """Return whether a frame of MPEG audio begins here: 11 bits are 1."""
    return data[:1] == b"\xff" and data[1:2] >= b"\xe0"


def _is_wav(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def _check(data: bytes, file: Stream, max_seconds: float) -> None:
    """Raise MediaError for a header that promises too much, or more than there is."""
    if not MIN_RATE <= file.samplerate <= MAX_RATE:
        raise MediaError(f"has {file.samplerate} samples a second; the limits are {MIN_RATE} and {MAX_RATE}")
    if file.channels > MAX_CHANNELS:
        raise MediaError(f"has {file.channels} channels; the limit is {MAX_CHANNELS}")
    if file.frames != NO_FRAMES:
        _check_seconds(file.frames, file.samplerate, max_seconds)
    size = int.from_bytes(data[4:8], "little")
    if _is_wav(data) and len(data) < size and size < NO_SIZE:  # some programs count the first 8 bytes too
        raise MediaError(f"is truncated: it has {len(data)} of the {size + 8} bytes in its header")
    if file.format == "OGG" and (n_streams := data.count(FIRST_PAGE)) > 1:  # libsndfile reads the first one only
        raise MediaError(f"has {n_streams} streams; the limit is 1")


def _check_seconds(n_frames: int, rate: int, max_seconds: float) -> None:
    if n_frames > max_seconds * rate:
        raise MediaError(f"lasts {n_frames / rate:.1f} s; the limit is {max_seconds} s")


def _mono(file: Stream, max_seconds: float) -> Iterator[Samples]:
    """Yield blocks of the mean of all channels. They are counted, because a header may lie."""
    n_frames = 0
    while len(block := file.read(min(BLOCK, file.frames - n_frames), "float32", always_2d=True)):  # [frames, channels]
        n_frames += len(block)
        _check_seconds(n_frames, file.samplerate, max_seconds)
        yield block.mean(axis=1)
    guessed = MP3_GUESS if file.format == "MP3" else 0
    if n_frames < file.frames - guessed and file.frames != NO_FRAMES:
        raise MediaError(f"is damaged or truncated: {n_frames} of its {file.frames} frames can be read")


def _resampled(blocks: Iterator[Samples], rate: int) -> Iterator[Samples]:
    """Yield the blocks at RATE, as if they were resampled at once, and an empty one at the end."""
    nothing = np.empty(0, np.float32)
    if rate == RATE:
        yield nothing
        yield from blocks
        return
    stream = soxr.ResampleStream(rate, RATE, 1, np.float32, "HQ")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(nothing, last=True)
