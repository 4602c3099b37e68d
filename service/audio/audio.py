"""Audio of requests, from files to mel spectra."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from model.audio.sizes import MelFormat
from model.batch import RunnerInfo
from model.errors import quoted
from model.machine.decoding import Fields
from service.errors.errors import InvalidRequest
from service.media.media import Media
from service.media.source import Source, of_base64

MAX_FILES = 16
NOT_FETCHED = "Noria never fetches audio: send the file in base64"
MAX_SECONDS = 3600
"""The longest audio for which the process has memory. The context of a model is often a lower limit."""


@dataclass(frozen=True, slots=True)
class DecodedAudio:
    """The mel spectrum of audio that lasts `seconds`: float32 [n_chunks, n_mels, 3000] in C order.

    Each chunk has a digest. Equal digests have equal spectra.
    """

    seconds: float
    digests: tuple[str, ...]
    inputs: bytes = field(repr=False)


def read_audio(text: str, param: str) -> Source:
    """Read the file in base64 `text`, or in a data URL. `param` names its field. Raises InvalidRequest.

    The content alone decides how it is decoded.
    """
    scheme, colon, rest = text.partition(":")
    if colon and scheme.strip().lower() != "data":
        raise InvalidRequest(f"{param} is no file, got {quoted(text)}. {NOT_FETCHED}", param=param)
    return of_base64(rest.partition(",")[2] if colon else text, param)


def limited(info: RunnerInfo) -> MelFormat:
    """Return the format that a model that hears reads, with the seconds that its context holds."""
    assert info.audio is not None, "a model without an audio encoder hears nothing"
    seconds = info.audio.max_seconds(info.max_model_len)
    return MelFormat(info.audio.n_mels, min(MAX_SECONDS, int(seconds)))


class Audios(Media[MelFormat, DecodedAudio]):
    """The audio of all requests. The files of a request may last as long together as one may."""

    kind, noun, limited = "audio", "audio", "audio files"

    def __init__(
        self, on_restart: Callable[[], None] = lambda: None, on_decoded: Callable[[float], None] = lambda seconds: None
    ) -> None:
        super().__init__(MAX_FILES, MAX_SECONDS, on_restart, on_decoded)

    async def decode(self, sources: Sequence[Source], format: MelFormat, owner: str = "") -> list[DecodedAudio]:
        """Decode as other media do. No file is decoded before the headers of all say how long they are together."""
        if len(sources) > 1:
            await super().decode(sources, replace(format, n_mels=0), owner)
        return await super().decode(sources, format, owner)

    def check(self, sources: Sequence[Source], found: Sequence[DecodedAudio], format: MelFormat) -> None:
        seconds = sum(audio.seconds for audio in found)
        if seconds > format.max_seconds:
            last = sources[len(found) - 1].param
            limit = f"the limit for a request is {format.max_seconds} s"
            raise InvalidRequest(f"the audio up to {last} lasts {seconds:.1f} s; {limit}", param=last)

    def made(self, answer: Fields, inputs: bytes) -> DecodedAudio:
        """Make a recording of its spectrum, with the digests of its chunks."""
        n_chunks = answer["n_chunks"]
        n_bytes = len(inputs) // max(1, n_chunks)
        chunks = (memoryview(inputs)[n * n_bytes : (n + 1) * n_bytes] for n in range(n_chunks))
        digests = (hashlib.blake2b(chunk, digest_size=16).hexdigest() for chunk in chunks)
        return DecodedAudio(answer["seconds"], (*digests,), inputs)
