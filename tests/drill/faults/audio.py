"""The process that decodes audio: its death, and recordings that are made to break it."""

import base64
from collections.abc import Sequence

import numpy as np

from tests.drill.canary import CHAT, Question
from tests.drill.faults.media import SEEDS, Medium
from tests.drill.row import Row
from tests.model.audio.files import saved, speech, wav, with_total


def recording(data: bytes) -> Question:
    """A chat request with this file as a recording."""
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode()}}
    content = [part, {"type": "text", "text": "What is said?"}]
    return Question(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0})


def good() -> Question:
    return recording(saved(speech(1.0, seed=next(SEEDS))))


def slow() -> Question:
    return recording(_pages())


def bombs() -> Sequence[Question]:
    """Headers that lie, an hour of silence with its length and without, noise as MP3, and pages without an end."""
    seed = next(SEEDS)
    short = saved(speech(1.0, seed=seed), kind="FLAC")
    hour = saved(np.zeros(4000 * 3600 + seed % 99, np.float32), 4000, "FLAC")
    noise = np.random.default_rng(seed).bytes(2_000_000)
    lies = [wav(rate=2**31 - 1), wav(n_channels=65_535), wav(data_size=2**32 - 1), with_total(short, 2**36 - 1)]
    return [recording(data) for data in (*lies, hour, with_total(hour, 0), b"\xff\xfb\x90\x64" + noise, _pages())]


def _pages() -> bytes:
    """An OGG file of a second, with 5 MB behind it in which a page seems to begin at every fourth byte."""
    return saved(speech(1.0, seed=next(SEEDS)), kind="VORBIS") + b"OggS" * 1_250_000


AUDIO = Medium("recording", "audio", "audio decoder", good, slow, bombs, "audio that wants too much time or memory")
ROWS: tuple[Row, ...] = AUDIO.rows()
