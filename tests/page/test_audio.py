"""Recordings in the chat view: the microphone, files, transcripts, and what the server gets of them.

The microphone is Chromium's own: it beeps once a second.
"""

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
import soundfile
from playwright.sync_api import FilePayload, Locator, Page, ViewportSize, expect

from model.chat.conversation import checked
from tests.fakes import END, IntegerTokenizer
from tests.model.audio.files import saved, speech
from tests.page.chat import answers, ask, button, foreign, opened, requests, with_card
from tests.page.conftest import LOOKS
from tests.service.live import FakeChat, Live, running
from tests.waiting import eventually

AUDIO, BEGIN, TRANSCRIBE = 253, 252, 251
"""Bytes that are in no UTF-8 text."""
TEXT: FilePayload = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"words\n```\nmore\n"}
BINARY: FilePayload = {"name": "a.out", "mimeType": "", "buffer": b"\x7fELF\0"}
PICTURE: FilePayload = {"name": "dot.png", "mimeType": "image/png", "buffer": b"\x89PNG"}
WAV: FilePayload = {"name": "speech.wav", "mimeType": "audio/wav", "buffer": saved(speech(0.5))}


class AudioTokenizer(IntegerTokenizer):
    control: dict[str, int] = {"<end>": END, "[AUDIO]": AUDIO, "[BEGIN_AUDIO]": BEGIN, "[TRANSCRIBE]": TRANSCRIBE}  # noqa: RUF012


class AudioChat(FakeChat):
    """`u:text;` a message, with BEGIN and AUDIO for a recording."""

    media_roles: Mapping[str, frozenset[str]] = MappingProxyType({"audio": frozenset({"user"})})

    def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        ids: list[int] = []
        for message in checked(messages):
            ids += f"{message['role'][0]}:".encode()
            for part in message.get("parts", [{"text": message["content"]}]):
                ids += part["text"].encode() if "text" in part else [BEGIN, AUDIO]
            ids += b";"
        return [*ids, *b"a:"]


@pytest.fixture(scope="module")
def hearing() -> Iterator[Live]:
    """A server whose model takes audio."""
    with running(chat=AudioChat(), tokenizer=AudioTokenizer(), model="audio") as live:
        yield live


@pytest.fixture
def page(page: Page) -> Page:
    """A tab that may use the microphone."""
    page.context.grant_permissions(["microphone"])
    return page


def recorded(page: Page, at: int = 1) -> Locator:
    """Record until the microphone has been heard; returns the recording on the shelf."""
    button(page, "Record").click()
    meter = page.get_by_role("meter", name="Loudness")
    expect(meter).to_be_visible()
    eventually(lambda: meter.evaluate("({ value }) => value > 0.01"), "the meter shows the beep")
    button(page, "Stop recording").click()
    expect(meter).to_be_hidden()
    found = page.get_by_label(f"Recording {at}", exact=True)
    expect(found).to_be_visible()
    return found


def choose(page: Page, *files: FilePayload) -> None:
    expect(button(page, "Record")).to_be_visible()  # the page knows the model
    page.locator(".composer input[type=file]").set_input_files(files)


def test_a_model_without_audio_has_no_microphone(live: Live, page: Page) -> None:
    with_card(page, description="It is deaf.")
    opened(page, live)
    expect(page.get_by_text("fake: It is deaf.")).to_be_visible()
    for name in ("Record", "Stop recording"):
        expect(button(page, name)).to_be_hidden()
    page.locator(".composer input[type=file]").set_input_files(WAV)
    expect(page.get_by_role("alert").first).to_have_text("This model takes no audio.")
    expect(page.locator("audio")).to_have_count(0)


def test_a_recording_is_transcribed_and_sent(hearing: Live, page: Page) -> None:
    others, sent = foreign(page, hearing), requests(page)
    opened(page, hearing)
    url = recorded(page).get_attribute("src") or ""
    head, _, data = url.partition(",")
    assert head == "data:audio/wav;base64"
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(data)))
    assert (samples.ndim, rate) == (1, 16_000)
    assert abs(samples).max() > 0.01
    assert page.evaluate(f"document.querySelector('audio[src=\"{url}\"]').error") is None
    box = page.get_by_label("Message")
    button(page, "Transcribe").click()
    expect(box).not_to_have_value("")
    answer = hearing.http.post(
        "/v1/audio/transcriptions", files={"file": base64.b64decode(data)}, data={"model": "fake"}
    )
    words = answer.json()["text"]
    expect(box).to_have_value(words)
    assert not sent
    ask(page, "What is it?")
    expect(page.locator(".message.user").get_by_label("Recording 1")).to_be_visible()
    expect(page.locator(".cost")).to_be_visible()
    expect(answers(page)).not_to_be_empty()
    assert sent[0][1]["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "input_audio", "input_audio": {"data": url}},
                {"type": "text", "text": "What is it?"},
            ],
        }
    ]
    assert others == [url] * len(others), "a data URL is the only other address"


def test_files_that_go_with_a_message_and_those_that_do_not(hearing: Live, page: Page) -> None:
    sent = requests(page)
    opened(page, hearing)
    alert = page.get_by_role("alert").first
    choose(page, BINARY)
    expect(alert).to_have_text("a.out: expected text, PNG, JPEG, WebP, GIF, WAV, FLAC, OGG or MP3.")
    box = page.get_by_label("Message")
    box.fill("Read this:")
    choose(page, TEXT)
    expect(box).to_have_value(f"Read this:\nnotes.txt:\n````\n{TEXT['buffer'].decode().strip()}\n````\n")
    box.fill("")
    choose(page, PICTURE)
    expect(alert).to_have_text("This model takes no images.")
    expect(page.locator(".shelf > *")).to_have_count(0)
    choose(page, WAV, WAV)
    expect(page.locator(".shelf audio")).to_have_count(2)
    button(page, "Remove recording 2").click()
    expect(page.locator(".shelf audio")).to_have_count(1)
    ask(page, "")
    expect(page.locator(".cost")).to_be_visible()
    url = "data:audio/wav;base64," + base64.b64encode(WAV["buffer"]).decode()
    assert sent[0][1]["messages"][0]["content"] == [{"type": "input_audio", "input_audio": {"data": url}}]


def test_a_damaged_recording_is_told(hearing: Live, page: Page) -> None:
    opened(page, hearing)
    choose(page, {**WAV, "buffer": b"RIFF"})
    button(page, "Transcribe").click()
    expect(page.get_by_role("alert").first).to_contain_text("is no WAV, FLAC, OGG or MP3 file")
    expect(page.get_by_label("Message")).to_have_value("")


REFUSING = "navigator.mediaDevices.getUserMedia = async () => { throw new Error('none is there'); }"
UNSAFE = "Object.defineProperty(navigator, 'mediaDevices', { value: undefined })"
"""Browsers do that to pages from other machines without TLS."""


@pytest.mark.parametrize(
    ("script", "reason"),
    [(REFUSING, "none is there"), (UNSAFE, "browsers allow one only to pages from HTTPS or from localhost")],
)
def test_without_a_microphone_it_says_why(hearing: Live, page: Page, script: str, reason: str) -> None:
    page.add_init_script(script)
    opened(page, hearing)
    button(page, "Record").click()
    expect(page.get_by_role("alert").first).to_have_text(f"There is no microphone to record from: {reason}")
    expect(button(page, "Record")).to_be_visible()
    expect(page.get_by_role("meter", name="Loudness")).to_be_hidden()


COUNTING = """navigator.mediaDevices.getUserMedia = ((ask) => (wanted) => {
    window.asked = (window.asked ?? 0) + 1;
    return ask(wanted).then((stream) => (window.stream = stream));
})(navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices))"""


def test_a_second_click_ends_a_recording_that_has_not_begun(hearing: Live, page: Page) -> None:
    page.add_init_script(COUNTING)
    opened(page, hearing)
    button(page, "Record").evaluate("(button) => { button.click(); button.click(); }")
    expect(page.locator(".shelf audio")).to_have_count(1)
    expect(button(page, "Record")).to_be_visible()
    assert page.evaluate("[window.asked, window.stream.active]") == [1, False]


@LOOKS
def test_recordings_for_a_screen_reader_and_a_phone(
    hearing: Live, page: Page, accessible: Callable[[Page], None], scheme: Any, size: ViewportSize
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    opened(page, hearing)
    accessible(page)
    button(page, "Record").click()
    expect(page.get_by_role("meter", name="Loudness")).to_be_visible()
    accessible(page)
    button(page, "Stop recording").click()
    expect(page.locator(".shelf audio")).to_have_count(1)
    choose(page, WAV, WAV)
    expect(page.locator(".shelf audio")).to_have_count(3)
    accessible(page)
    for name in ("Record", "Add file", "Send", "Message"):
        found = page.get_by_label(name, exact=True) if name == "Message" else button(page, name)
        expect(found).to_be_in_viewport(ratio=1)
    ask(page, "What is said?")
    expect(page.locator(".cost")).to_be_visible()
    accessible(page)
