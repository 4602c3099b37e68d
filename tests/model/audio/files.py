"""Audio files for tests: honest ones by soundfile, and ones that are made by hand, byte by byte."""

import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

Samples = NDArray[np.float32]
SUBTYPES = {"WAV": "PCM_16", "FLAC": "PCM_16", "VORBIS": "VORBIS", "OPUS": "OPUS", "MP3": "MPEG_LAYER_III"}
"""Kind of a file -> libsndfile's name of its coding. Those that are not here are of OGG."""
TOTAL = slice(18, 26)
"""The bytes of a FLAC file with the number of its frames, in their last 36 bits (RFC 9639, section 8.2)."""
FRAMES_BITS = 36
SPOKEN = sorted((Path(__file__).parent / "spoken").glob("say.*"))
"""Four seconds of English by espeak-ng 1.51, as files of programs other than libsndfile: SoX, LAME, opusenc, oggenc.

    espeak-ng -v en-gb -w say.wav "Good morning. The meeting begins at nine, in the room by the river."
    sox say.wav --bits 16 -C 8 say.flac; lame --quiet -V 5 say.wav say.mp3
    opusenc --quiet --bitrate 24 say.wav say.opus; oggenc -Q -q 2 -o say.ogg say.wav
"""


def speech(seconds: float, rate: int = 16_000, n_channels: int = 1, seed: int = 0) -> Samples:
    """Samples [n, n_channels] of a voice that glides, with noise: every bin of the spectrum has some energy."""
    generator = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    voice = sum(np.sin(2 * np.pi * n * (120 * time + 20 * np.sin(time))) / n for n in range(1, 20))
    noise = generator.standard_normal((len(time), n_channels))
    return (0.1 * np.asarray(voice)[:, None] + 0.05 * noise).astype(np.float32)


def saved(samples: Samples, rate: int = 16_000, kind: str = "WAV", **options: Any) -> bytes:
    """The samples as a file. `kind` is a key of SUBTYPES. A second is written at a time: Vorbis needs that."""
    file = BytesIO()
    format, subtype = kind if kind in ("WAV", "FLAC", "MP3") else "OGG", options.pop("subtype", SUBTYPES[kind])
    n_channels = samples.shape[1] if samples.ndim == 2 else 1
    with soundfile.SoundFile(file, "w", rate, n_channels, subtype, format=format, **options) as out:
        for start in range(0, len(samples), rate):
            out.write(samples[start : start + rate])
    return file.getvalue()


def wav(
    n_channels: int = 1, rate: int = 16_000, bits: int = 16, tag: int = 1, data: bytes = bytes(3200), **sizes: int
) -> bytes:
    """A WAV file by hand. `riff_size` and `data_size` may lie."""
    width = n_channels * bits // 8
    second = rate * width & 0xFFFF_FFFF
    header = struct.pack("<4sIHHIIHH", b"fmt ", 16, tag, n_channels, rate, second, width & 0xFFFF, bits)
    riff_size, data_size = sizes.get("riff_size", 36 + len(data)), sizes.get("data_size", len(data))
    return struct.pack("<4sI4s", b"RIFF", riff_size, b"WAVE") + header + struct.pack("<4sI", b"data", data_size) + data


def with_total(flac: bytes, n_frames: int) -> bytes:
    """The FLAC file with another number of frames in its header. 0 says that nobody knows."""
    bits = int.from_bytes(flac[TOTAL], "big") >> FRAMES_BITS << FRAMES_BITS
    return flac[: TOTAL.start] + (bits | n_frames).to_bytes(8, "big") + flac[TOTAL.stop :]


def id3(n_bytes: int) -> bytes:
    """An ID3 tag of `n_bytes` of zeros (ID3v2.4, section 3.1: its length has 7 bits a byte)."""
    return b"ID3\4\0\0" + bytes(n_bytes >> shift & 0x7F for shift in (21, 14, 7, 0)) + bytes(n_bytes)


def without_last_page(ogg: bytes) -> bytes:
    """The OGG file without the page that ends its stream."""
    return ogg[: ogg.rindex(b"OggS")]


def variable_without_length() -> bytes:
    """An MP3 file of a variable bit rate without Xing's header. A reader guesses its length by its first frames."""
    loud, silent = speech(4), np.zeros((16_000 * 60, 1), np.float32)
    return without_length(
        saved(np.concatenate([loud, silent]), kind="MP3", bitrate_mode="VARIABLE", compression_level=0.2)
    )


def without_length(mp3: bytes) -> bytes:
    """The MP3 file without its first frame, which is Xing's header."""
    return mp3[mp3.index(mp3[:2], 400) :]


def damaged(data: bytes, n_bytes: int) -> bytes:
    """The file with other bytes after a third of it."""
    start, stop = len(data) // 3, len(data) // 3 + n_bytes
    return data[:start] + bytes(byte ^ 0x55 for byte in data[start:stop]) + data[stop:]


def slow() -> bytes:
    """An OGG file of a second, with 8 MB behind it in which a page seems to begin at every fourth byte."""
    return saved(speech(1), kind="VORBIS") + b"OggS" * 2_000_000
