"""Images of requests, from data URLs to pixels. A child process decodes them: a hostile image may kill it alone."""

import asyncio
import base64
import binascii
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from model.chat.images import ImageTokens
from model.errors import ImageError, quoted
from model.images.client import ImageProcess
from model.media import ImageFormat, MediaSpan
from service.errors.errors import InvalidRequest
from service.generation.request import ServedModel
from service.helpers import HelperThread, LimitsExceeded, Recent

WHITE_SPACE = str.maketrans("", "", " \t\r\n")
NOT_FETCHED = "Noria never fetches images: send the image as a base64 data URL, data:image/png;base64,..."


@dataclass(frozen=True, slots=True)
class Source:
    """The bytes of an image file, the field that had them, and their digest."""

    data: bytes
    param: str
    digest: bytes


def read_source(url: str, param: str) -> Source:
    """The image in a base64 data URL. `param` names its field. Raises InvalidRequest.

    The type that the URL names must be one of images. The content alone decides how it is decoded.
    """
    scheme, _, rest = url.partition(":")
    if scheme.strip().lower() != "data":
        raise InvalidRequest(f"{param} is no data URL, got {quoted(url)}. {NOT_FETCHED}", param=param)
    header, comma, text = rest.partition(",")
    kind, *options = header.lower().split(";")
    if not comma or "base64" not in map(str.strip, options):
        raise InvalidRequest(
            f"{param} must be a base64 data URL such as data:image/png;base64,..., got {quoted(url)}", param=param
        )
    return read_base64(text, kind.strip(), param)


def read_base64(text: str, kind: str, param: str) -> Source:
    """The image in base64 `text`, which may have line breaks. `kind` is its MIME type. Raises InvalidRequest."""
    if not kind.startswith("image/"):
        raise InvalidRequest(f"{param} must have a type of images such as image/png, got {quoted(kind)}", param=param)
    try:
        data = base64.b64decode(text.translate(WHITE_SPACE), validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: not ASCII
        raise InvalidRequest(f"{param} is no valid base64: {error}", param=param) from None
    if not data:
        raise InvalidRequest(f"{param} has no data", param=param)
    return Source(data, param, hashlib.blake2b(data, digest_size=16).digest())


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """RGB bytes [rows * token_side, columns * token_side, 3]. Equal digests have equal sizes and pixels."""

    rows: int
    columns: int
    digest: str
    pixels: bytes = field(repr=False)


class Decoder:
    """Decodes images in a child process, which starts at the first one. `on_restart` hears when one replaces another.

    A `patient` decoder gives an image more time, and starts a process for each.
    """

    def __init__(
        self, max_pixels: int, on_restart: Callable[[], None] = lambda: None, *, patient: bool = False
    ) -> None:
        self._max_pixels = max_pixels
        self._patient = patient
        self._helper: HelperThread[ImageProcess] = HelperThread("decodes images", "image_unavailable", on_restart)

    async def decode(self, data: bytes, format: ImageFormat) -> DecodedImage:
        """The pixels of an image file. Raises ImageError, LimitsExceeded, and Unavailable without a process."""
        return await self._helper.run(lambda: self._decoded(data, format))

    async def close(self) -> None:
        """End the process and the thread."""
        await self._helper.close()

    def _decoded(self, data: bytes, format: ImageFormat) -> DecodedImage:
        try:
            pixels = self._helper.use(self._start, lambda process: process.decode(data, format))
        finally:
            if self._patient:
                self._helper.end()
        digest = hashlib.blake2b(f"{pixels.rows} {pixels.columns} ".encode(), digest_size=16)
        digest.update(pixels.pixels)
        return DecodedImage(pixels.rows, pixels.columns, digest.hexdigest(), pixels.pixels)

    def _start(self) -> ImageProcess:
        return ImageProcess(self._max_pixels, patient=self._patient)


CACHE_BYTES = 64 * 2**20
"""Pixels that are kept: a conversation sends its images again with each request."""
REQUESTS = 4
"""As many requests may have images decoded that the engine's queue does not count yet: pixels can be far larger than a
request's body."""
MAX_SUSPECTS = 1024
TOO_MUCH = "takes too much time or memory to decode"


Key = tuple[bytes, ImageFormat]
"""The digest of an image file, and the format that it was decoded for."""


class Suspected(Exception):
    """An image has to be decoded apart."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source


class Images:
    """The images of all requests. It decodes one at a time, and keeps the last ones. One per server.

    An image that exceeds the short limit of time, or that of memory, is a suspect. A second process decodes suspects
    with the long limit, one at a time, while the first goes on with other images. `on_decoded` gets the seconds from an
    image's turn to its pixels.
    """

    def __init__(
        self,
        max_images: int,
        max_pixels: int,
        on_restart: Callable[[], None] = lambda: None,
        on_decoded: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._max_images = max_images
        self._on_decoded = on_decoded
        self._recent: Recent[Key, DecodedImage] = Recent(CACHE_BYTES, lambda image: len(image.pixels))
        self._suspects: Recent[Key, bool] = Recent(MAX_SUSPECTS)  # whether they exceeded the longer limit too
        self._turns = asyncio.Semaphore(REQUESTS)
        self._decoder, self._decoder_turn = Decoder(max_pixels, on_restart), asyncio.Lock()
        self._patient, self._patient_turn = Decoder(max_pixels, patient=True), asyncio.Lock()

    async def decode(self, sources: Sequence[Source], format: ImageFormat) -> list[DecodedImage]:
        """The pixels of a request's images, resized for the model.

        Raises InvalidRequest, naming the field, for an image that cannot be used; Unavailable without a process.
        """
        if len(sources) > self._max_images:
            field = sources[self._max_images].param
            limit = f"a request may have at most {self._max_images} images (--max-images), got {len(sources)}"
            raise InvalidRequest(limit, param=field)
        known = [self._recent.find((source.digest, format)) for source in sources]
        if all(known):  # they wait for nobody
            return [image for image in known if image is not None]
        apart: dict[bytes, DecodedImage] = {}
        while True:
            try:
                async with self._turns:
                    return [apart.get(source.digest) or await self._one(source, format) for source in sources]
            except Suspected as suspected:  # it waits without a turn: others' images go on
                source = suspected.source
            apart[source.digest] = await self._one_apart(source, format)

    async def close(self) -> None:
        """End the processes and the threads."""
        await asyncio.gather(self._decoder.close(), self._patient.close())

    async def _one(self, source: Source, format: ImageFormat) -> DecodedImage:
        """The pixels of an image. Raises InvalidRequest, Unavailable and Suspected."""
        key = (source.digest, format)
        async with self._decoder_turn:  # others' images come between those of a request
            if (found := self._recent.find(key)) is not None:
                return found
            if self._suspects.find(key) is not None:
                raise Suspected(source)
            try:
                return await self._decoded(self._decoder, source, format)
            except LimitsExceeded:
                self._suspects.note(key, False)
                raise Suspected(source) from None

    async def _one_apart(self, source: Source, format: ImageFormat) -> DecodedImage:
        """The pixels of a suspect. Raises InvalidRequest and Unavailable."""
        key = (source.digest, format)
        async with self._patient_turn:
            if (found := self._recent.find(key)) is not None:
                return found
            try:
                if not self._suspects.find(key):
                    return await self._decoded(self._patient, source, format)
            except LimitsExceeded:
                self._suspects.note(key, True)
            raise _refusal(source, TOO_MUCH)

    async def _decoded(self, decoder: Decoder, source: Source, format: ImageFormat) -> DecodedImage:
        began = time.monotonic()
        try:
            image = await decoder.decode(source.data, format)
        except ImageError as error:
            raise _refusal(source, str(error)) from None
        self._recent.note((source.digest, format), image)
        self._on_decoded(time.monotonic() - began)
        return image


def _refusal(source: Source, problem: str) -> InvalidRequest:
    return InvalidRequest(f"the image in {source.param} {problem}", param=source.param, code="invalid_image")


def expanded(
    tokens: list[int], images: Sequence[DecodedImage], served: ServedModel, param: str
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """The prompt with the rows of each image in place of its token `[IMG]`, and the places of the images.

    Raises InvalidRequest, naming `param`, if the chat format has not written one token for each image.
    """
    if not images:
        return tokens, ()
    ids = ImageTokens.of(served.tokenizer)
    assert ids is not None, "no chat format writes images without these tokens"
    if (found := tokens.count(ids.image)) != len(images):
        message = f"{param} cannot be written: the model's chat format has places for {found} of {len(images)} images"
        raise InvalidRequest(message, param=param)
    whole: list[int] = []
    spans: list[MediaSpan] = []
    done = 0
    for image in images:
        place = tokens.index(ids.image, done)
        whole += tokens[done:place]
        spans.append(MediaSpan(len(whole), image.rows, image.columns, image.digest))
        whole += ([ids.image] * image.columns + [ids.row_break]) * image.rows
        whole[-1] = ids.end
        done = place + 1
    return whole + tokens[done:], tuple(spans)


def spans_after(spans: tuple[MediaSpan, ...], n_begin: int, n_cut: int) -> tuple[MediaSpan, ...]:
    """The images of a prompt that loses `n_cut` tokens after its first `n_begin`. Images among those are left out.

    Raises InvalidRequest for a cut inside an image.
    """
    first = n_begin + n_cut
    if divided := [span for span in spans if span.start < first < span.stop]:
        start, stop = divided[0].start, divided[0].stop
        raise InvalidRequest(
            f"truncate_prompt_tokens cuts through an image: it leaves out the first {first} tokens of the prompt, "
            f"and the image has the tokens {start} to {stop - 1}",
            param="truncate_prompt_tokens",
        )
    return tuple(replace(span, start=span.start - n_cut) for span in spans if span.start >= first)
