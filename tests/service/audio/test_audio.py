"""Audio of requests: what is decoded and remembered, and whose fault a lost process is.

What images and audio have in common is tested with images.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Iterator
from typing import TypeVar

import numpy as np
import pytest

from model.audio.mel import log_mel
from model.audio.sizes import MelFormat
from service.audio.audio import MAX_FILES, Audios, DecodedAudio
from service.errors.errors import ApiError, InvalidRequest, Unavailable
from service.media.source import Source, of_bytes
from tests.faults import failing
from tests.model.audio.files import saved, slow, speech

T = TypeVar("T")
FORMAT = MelFormat(n_mels=128, max_seconds=70)


def source(seconds: float, seed: int = 0, param: str = "file") -> Source:
    return of_bytes(saved(speech(seconds, seed=seed), subtype="FLOAT"), param)


class Hearing:
    """The audio of a server, and what its metrics would hear."""

    def __init__(self) -> None:
        self.restarts = 0
        self.seconds: list[float] = []
        self.loop = asyncio.new_event_loop()
        self.audios = Audios(self._restarted, self.seconds.append)

    def _restarted(self) -> None:
        self.restarts += 1

    def run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)

    def decode(self, *sources: Source, format: MelFormat = FORMAT) -> list[DecodedAudio]:
        return self.run(self.audios.decode(sources, format))

    def refused(self, *sources: Source, kind: type[ApiError] = InvalidRequest, format: MelFormat = FORMAT) -> ApiError:
        with pytest.raises(kind) as caught:
            self.decode(*sources, format=format)
        return caught.value

    def close(self) -> None:
        self.run(self.audios.close())
        self.loop.close()


@pytest.fixture
def hearing() -> Iterator[Hearing]:
    started = Hearing()
    yield started
    started.close()


def test_audio_has_its_spectrum_and_a_digest_for_each_chunk(hearing: Hearing) -> None:
    (found,) = hearing.decode(source(40))
    expected = log_mel(speech(40)[:, 0], 128)
    assert (found.seconds, found.inputs) == (40.0, expected.tobytes())
    chunks = [hashlib.blake2b(chunk.tobytes(), digest_size=16).hexdigest() for chunk in expected]
    assert list(found.digests) == chunks
    assert len(set(chunks)) == 2


def test_equal_chunks_have_equal_digests(hearing: Hearing) -> None:
    chunk, rest = speech(30), speech(1, seed=1)
    samples = (np.concatenate([chunk, chunk, rest]) * 2**15).astype(np.int16)
    (found,) = hearing.decode(of_bytes(saved(samples), "file"))
    (same,) = hearing.decode(of_bytes(saved(samples, kind="FLAC"), "file"), format=MelFormat(128, 100))
    assert found == same
    assert len(set(found.digests)) == 3, "the first chunk begins with the mirrored audio"


def test_audio_that_is_sent_again_is_not_decoded_again(hearing: Hearing) -> None:
    before, first, second = len(hearing.seconds), source(11), source(12)  # a file has the time when it was written
    expected = hearing.decode(first, second)
    assert hearing.decode(second, first) == expected[::-1]
    assert len(hearing.seconds) == before + 2


def test_a_bad_file_names_its_field(hearing: Hearing) -> None:
    error = hearing.refused(source(1), of_bytes(b"<html>", "messages[0].content[1].input_audio.data"))
    assert error.code == "invalid_audio"
    assert error.param == "messages[0].content[1].input_audio.data"
    assert error.message == (
        "the audio in messages[0].content[1].input_audio.data is no WAV, FLAC, OGG or MP3 file, "
        "or its header is damaged"
    )
    assert hearing.refused(source(71, param="x")).message == "the audio in x lasts 71.0 s; the limit is 70 s"
    assert hearing.restarts == 0


def test_the_audio_of_a_request_has_a_limit_together(hearing: Hearing) -> None:
    error = hearing.refused(source(40), source(31, param="b"), of_bytes(b"never read", "c"))
    assert error.message == "the audio up to b lasts 71.0 s; the limit for a request is 70 s"
    assert error.param == "b"
    assert hearing.refused(source(40), source(31, param="b")).message == error.message, "both are known now"
    assert len(hearing.decode(source(40), source(30))) == 2


def test_too_many_files_are_refused(hearing: Hearing) -> None:
    error = hearing.refused(*(of_bytes(b"x", f"input[{n}]") for n in range(MAX_FILES + 1)))
    assert error.message == "a request may have at most 16 audio files, got 17"
    assert error.param == "input[16]"


def test_audio_that_exceeds_both_limits_is_refused_and_other_audio_is_not(hearing: Hearing) -> None:
    error = hearing.refused(source(1), of_bytes(slow(), "x"))
    assert error.message == "the audio in x takes too much time or memory to decode"
    assert hearing.decode(source(1, seed=1))[0].seconds == 1
    assert hearing.restarts == 1


def test_without_a_process_nothing_is_blamed(hearing: Hearing) -> None:
    with failing("fork", 11, lasting=True):
        error = hearing.refused(source(1), kind=Unavailable)
    assert (error.status, error.code) == (503, "audio_unavailable")
    assert hearing.decode(source(1))[0].seconds == 1


def test_files_that_are_too_long_together_are_not_decoded(hearing: Hearing) -> None:
    """Their headers tell. The audio of none has been decoded, so that none is remembered."""
    files = [source(40, seed=1, param="first"), source(40, seed=2, param="second")]
    error = hearing.refused(*files)
    assert str(error) == "the audio up to second lasts 80.0 s; the limit for a request is 70 s"
    assert not hearing.seconds
    assert len(hearing.decode(files[0], source(20, seed=3))) == 2
