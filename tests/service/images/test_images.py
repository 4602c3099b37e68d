"""Images of requests: what a client may send, what is decoded and remembered, and whose fault a lost process is."""

import asyncio
import base64
import hashlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

import pytest
from PIL import Image

from model.machine import helper
from model.machine.decoding import DecodingProcess, Fields
from model.machine.helper import ProcessLost
from model.media import ImageFormat
from service.errors.errors import ApiError, InvalidRequest, Unavailable
from service.images.images import DecodedImage, Images, read_base64, read_source
from service.media.media import REQUESTS
from service.media.source import Source
from tests.faults import failing, helpers
from tests.model.images.files import noise, saved, texts
from tests.waiting import PATIENCE, ended, strike

T = TypeVar("T")
PROCESS = "model.images.process"
FORMAT = ImageFormat(patch_size=4, merge=2, longest_side=64)
SEEDS = count()
SIGNALS = [signal.SIGKILL, signal.SIGPROF]
"""`test_trial.py` has more: the thread is the same."""


def source(data: bytes, param: str = "image") -> Source:
    return read_base64(base64.b64encode(data).decode(), "image/png", param)


def new() -> Source:
    """An image that was never sent before."""
    return source(saved(noise(16, 24, seed=next(SEEDS))))


class Decoding:
    """The images of a server, and what its metrics would hear."""

    def __init__(self) -> None:
        self.restarts = 0
        self.seconds: list[float] = []
        self.loop = asyncio.new_event_loop()
        self.others = {*helpers(PROCESS)}
        self.images = Images(3, 2**16, self._restarted, self.seconds.append)

    def _restarted(self) -> None:
        self.restarts += 1

    def run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)

    def decode(self, *sources: Source, format: ImageFormat = FORMAT) -> Sequence[DecodedImage]:
        return self.run(self.images.decode(sources, format))

    def refused(self, *sources: Source, kind: type[ApiError] = InvalidRequest) -> ApiError:
        with pytest.raises(kind) as caught:
            self.decode(*sources)
        return caught.value

    @property
    def pid(self) -> int:
        (pid,) = self.pids
        return pid

    @property
    def pids(self) -> set[int]:
        return {*helpers(PROCESS)} - self.others

    def close(self) -> None:
        self.run(self.images.close())
        self.loop.close()


@pytest.fixture
def decoder() -> Iterator[Decoding]:
    started = Decoding()
    yield started
    started.close()


def test_an_image_has_its_pixels_and_their_digest(decoder: Decoding) -> None:
    image = noise(16, 24)
    (found,) = decoder.decode(source(saved(image)))
    assert (found.rows, found.columns, found.inputs) == (3, 2, image.tobytes())
    assert found.digest == hashlib.blake2b(b"3 2 " + image.tobytes(), digest_size=16).hexdigest()


def test_equal_pixels_have_equal_digests_in_any_file(decoder: Decoding) -> None:
    image, other = noise(16, 24), noise(16, 24, seed=1)
    turned = Image.frombytes("RGB", (24, 16), image.tobytes())
    digests = [
        found.digest
        for found in (
            *decoder.decode(source(saved(image)), source(saved(image, "WEBP", lossless=True))),
            *decoder.decode(source(saved(other)), source(saved(turned))),
        )
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_an_image_that_is_sent_again_is_not_decoded_again(decoder: Decoding) -> None:
    first, second = source(saved(noise(16, 24))), source(saved(noise(24, 16)))
    expected = decoder.decode(first, second)
    assert len(decoder.seconds) == 2
    assert decoder.decode(second, first, second) == [expected[1], expected[0], expected[1]]
    assert len(decoder.seconds) == 2
    decoder.decode(first, format=ImageFormat(patch_size=8, merge=1, longest_side=32))
    assert len(decoder.seconds) == 3


def test_no_process_starts_before_the_first_image(decoder: Decoding) -> None:
    assert decoder.decode() == []
    assert not decoder.pids


def test_too_many_images_are_refused(decoder: Decoding) -> None:
    images = [source(b"x", f"input[{n}]") for n in range(5)]
    error = decoder.refused(*images)
    assert error.message == "a request may have at most 3 images (--max-images), got 5"
    assert error.param == "input[3]"


def test_a_bad_image_names_its_field(decoder: Decoding) -> None:
    error = decoder.refused(new(), source(b"<svg/>", "messages[2].content[0].image_url.url"))
    assert error.param == "messages[2].content[0].image_url.url"
    assert error.message == (
        "the image in messages[2].content[0].image_url.url is no PNG, JPEG, WebP or GIF image, or its header is damaged"
    )
    assert error.code == "invalid_image"
    error = decoder.refused(source(saved(Image.new("RGB", (300, 300))), "x"))
    assert "has 300 x 300 = 90000 pixels; the limit is 65536 (--max-image-pixels)" in error.message
    assert decoder.restarts == 0


def test_an_image_that_exceeds_both_limits_is_refused_and_others_are_not(decoder: Decoding) -> None:
    error = decoder.refused(new(), source(texts(), "x"))
    assert error.message == "the image in x takes too much time or memory to decode"
    assert not decoder.pids
    assert decoder.decode(new())[0].rows == 3
    assert decoder.restarts == 1


def test_a_refused_image_costs_no_process_when_it_comes_again(decoder: Decoding) -> None:
    bomb = source(texts(), "x")
    error = decoder.refused(bomb)
    decoder.decode(new())
    pid = decoder.pid
    with failing("fork", 11, lasting=True):
        again = decoder.refused(replace(bomb, param="y"))
    assert again.message == error.message.replace("x", "y", 1)
    assert (decoder.pid, decoder.restarts) == (pid, 1)


def before_each(monkeypatch: pytest.MonkeyPatch, call: Callable[[bool, bytes], None]) -> None:
    """Call this before a process decodes, with whether it is patient, and the file."""
    start, decode = DecodingProcess.__init__, DecodingProcess.decode
    patient: set[DecodingProcess] = set()

    def started(self: DecodingProcess, *args: Any, **options: Any) -> None:
        start(self, *args, **options)
        patient.update([self] if options["patient"] else [])

    def decoding(self: DecodingProcess, data: bytes, format: ImageFormat) -> tuple[Fields, bytes]:
        call(self in patient, data)
        return decode(self, data, format)

    monkeypatch.setattr(DecodingProcess, "__init__", started)
    monkeypatch.setattr(DecodingProcess, "decode", decoding)


def test_an_image_that_needs_the_long_limit_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is above the short limit. When it comes again, the first process does not try it again."""
    image, tried = new(), list[bool]()

    def slow(patient: bool, data: bytes) -> None:
        tried.append(patient)
        if data == image.data and not patient:
            raise ProcessLost("it takes too long", by_limits=True)

    monkeypatch.setattr("service.media.media.CACHE_BYTES", 4 * 16 * 24 * 3)
    before_each(monkeypatch, slow)
    with closing(Decoding()) as decoder:
        found = decoder.decode(new(), image, new())
        assert [picture.rows for picture in found] == [3, 3, 3]
        assert tried == [False, False, True, False]
        for _ in range(4):  # the image is forgotten
            decoder.decode(new())
        assert decoder.decode(image) == found[1:2]
        assert tried[4:] == [False] * 4 + [True]


def test_images_do_not_wait_for_suspects(decoder: Decoding, monkeypatch: pytest.MonkeyPatch) -> None:
    """More suspects than requests may decode at a time wait for the patient process, which hangs."""
    hangs = threading.Event()

    def slow(patient: bool, data: bytes) -> None:
        if patient:
            assert hangs.wait(PATIENCE)
        if data.startswith(b"slow"):
            raise ProcessLost("it takes too long", by_limits=True)

    async def serve() -> list[DecodedImage]:
        suspects = [decoder.images.decode([source(b"slow%d" % n)], FORMAT) for n in range(2 * REQUESTS)]
        waiting = asyncio.gather(*suspects, return_exceptions=True)
        found = await decoder.images.decode([new()], FORMAT)
        assert not waiting.done()
        hangs.set()
        assert {type(error) for error in await waiting} == {InvalidRequest}
        return found

    before_each(monkeypatch, slow)
    assert decoder.run(serve())[0].rows == 3


@pytest.mark.parametrize("number", SIGNALS)
def test_an_idle_process_that_is_lost_costs_nobody_an_image(decoder: Decoding, number: signal.Signals) -> None:
    decoder.decode(new())
    old = decoder.pid
    strike(old, number)
    decoder.decode(new())
    assert ended(old)
    decoder.decode(new())  # after a signal like that of a limit the patient process has decoded the first
    assert decoder.restarts == 1


@pytest.mark.parametrize("number", SIGNALS)
def test_a_process_lost_with_an_image_is_tried_again(
    decoder: Decoding, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives between the request for the pixels and the answer."""
    decoder.decode(new())
    left, send = [number], helper.Link.send

    def hit(link: helper.Link, value: Any, *arguments: Any) -> None:
        if left:
            strike(decoder.pid, left.pop())
        send(link, value, *arguments)

    monkeypatch.setattr(helper.Link, "send", hit)
    assert decoder.decode(new())[0].rows == 3
    assert not left
    decoder.decode(new())
    assert decoder.restarts == 1


def test_without_a_process_nothing_is_blamed_and_nothing_remembered(decoder: Decoding) -> None:
    image = new()
    with failing("fork", 11, lasting=True):
        error = decoder.refused(image, kind=Unavailable)
    assert (error.status, error.code) == (503, "image_unavailable")
    assert decoder.decode(image)[0].rows == 3


def test_images_of_two_requests_alternate(decoder: Decoding, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    names: dict[bytes, str] = {}
    before_each(monkeypatch, lambda patient, data: order.append(names[data]))
    requests = [[new() for _ in range(3)] for _ in "ab"]
    names |= {image.data: name for name, images in zip("ab", requests, strict=True) for image in images}

    async def both() -> None:
        await asyncio.gather(*(decoder.images.decode(sources, FORMAT) for sources in requests))

    decoder.run(both())
    assert order == list("ababab")


PARAM = "messages[0].content[1].image_url.url"
DATA = bytes(range(256))
TEXT = base64.b64encode(DATA).decode()


def refused(url: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_source(url, PARAM)
    assert caught.value.param == PARAM
    assert caught.value.message.startswith(PARAM)
    return caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{TEXT}",
        f"data:image/jpeg;base64,{TEXT}",
        f"DATA:IMAGE/PNG;BASE64,{TEXT}",
        f"data:image/png;name=a.png;base64,{TEXT}",
        f"data:image/svg+xml; base64,{TEXT}",  # the content decides
        "data:image/png;base64," + "\r\n".join(TEXT[i : i + 76] for i in range(0, len(TEXT), 76)) + "\n",
    ],
)
def test_a_data_url_has_the_bytes_of_the_file(url: str) -> None:
    source = read_source(url, PARAM)
    assert (source.data, source.param) == (DATA, PARAM)


def test_equal_bytes_have_equal_digests() -> None:
    same, other = read_source(f"data:image/gif;base64,{TEXT}", "a"), read_base64("AAAA", "image/gif", "b")
    assert same.digest == read_base64(TEXT, "image/png", "b").digest != other.digest


@pytest.mark.parametrize(
    "url", ["https://example.com/a.png", "http://127.0.0.1:1/a.png", "file:///etc/passwd", "/etc/passwd", TEXT, ""]
)
def test_nothing_is_fetched(url: str) -> None:
    assert "Noria never fetches images: send the image as a base64 data URL" in refused(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:", "must be a base64 data URL"),
        ("data:image/png;base64", "must be a base64 data URL"),
        (f"data:image/png,{TEXT}", "must be a base64 data URL"),
        ("data:image/svg+xml,<svg/>", "must be a base64 data URL"),
        (f"data:;base64,{TEXT}", 'must have a type of images such as image/png, got ""'),
        (f"data:text/html;base64,{TEXT}", 'got "text/html"'),
        (f"data:application/pdf;base64,{TEXT}", 'got "application/pdf"'),
        ("data:image/png;base64,", "has no data"),
        ("data:image/png;base64,AAA", "is no valid base64"),
        ("data:image/png;base64,AA==AA==", "is no valid base64"),
        ("data:image/png;base64,AA_-", "is no valid base64"),
        ("data:image/png;base64,AA%3D%3D", "is no valid base64"),
        ("data:image/png;base64,\N{SNOWMAN}AAA", "is no valid base64"),
    ],
)
def test_other_urls_are_refused(url: str, reason: str) -> None:
    assert reason in refused(url)


def test_a_long_url_is_quoted_in_short() -> None:
    assert len(refused("https://example.com/" + "x" * 10**6)) < 400


def test_a_few_requests_decode_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten requests of two images: no more than `REQUESTS` of them have begun and not ended, and all of them end."""
    open_requests: set[bytes] = set()
    most = 0

    async def decode(self: Images, source: Source, format: ImageFormat) -> DecodedImage:
        nonlocal most
        open_requests.add(source.data)
        most = max(most, len(open_requests))
        await asyncio.sleep(0)
        if source.param == "last":
            open_requests.remove(source.data)
        return DecodedImage(1, 1, source.param, source.data)

    async def serve() -> list[list[DecodedImage]]:
        images = Images(2, 100)
        names = [bytes([number]) for number in range(10)]
        pairs = [[Source(name, param, name) for param in ("first", "last")] for name in names]
        try:
            return await asyncio.gather(*(images.decode(pair, ImageFormat(1, 1, 10)) for pair in pairs))
        finally:
            await images.close()

    monkeypatch.setattr(Images, "_one", decode)
    found = asyncio.run(serve())
    assert [[image.inputs for image in pair] for pair in found] == [[bytes([number])] * 2 for number in range(10)]
    assert most == REQUESTS
