"""The openai package transcribes, translates and asks about a recording."""

import base64
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from asking import HEARING, HEARING_BASE, RECORDING

SHORT: Any = {"max_tokens": 12}
ASK: Any = {"model": HEARING, "file": RECORDING, "temperature": 0, "extra_body": SHORT}


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=HEARING_BASE, api_key="none", max_retries=0) as client:
        yield client


def test_a_transcript_in_every_form(client: openai.OpenAI) -> None:
    whole = client.audio.transcriptions.create(**ASK, language="en")
    assert whole.text
    assert whole.usage.type == "tokens"
    assert (whole.usage.input_token_details.audio_tokens, whole.usage.output_tokens) == (375, 12)
    assert client.audio.transcriptions.create(**ASK, language="en", response_format="text") == f"{whole.text}\n"
    verbose = client.audio.transcriptions.create(**ASK, language="en", response_format="verbose_json")
    assert (verbose.text, verbose.language, float(verbose.duration)) == (whole.text, "en", 2.0)


def test_a_transcript_is_streamed(client: openai.OpenAI) -> None:
    whole = client.audio.transcriptions.create(**ASK)
    with client.audio.transcriptions.create(**ASK, stream=True) as stream:
        *deltas, done = list(stream)
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert "".join(event.delta for event in deltas) == whole.text
    assert (done.type, done.text) == ("transcript.text.done", whole.text)
    assert done.usage.model_dump() == whole.usage.model_dump()


def test_a_translation(client: openai.OpenAI) -> None:
    whole = client.audio.translations.create(**ASK)
    assert whole.text
    assert client.audio.translations.create(**ASK, response_format="text") == f"{whole.text}\n"
    verbose = client.audio.translations.create(**ASK, response_format="verbose_json")
    assert (verbose.text, verbose.language, float(verbose.duration)) == (whole.text, "en", 2.0)


def test_a_chat_about_a_recording(client: openai.OpenAI) -> None:
    data = base64.b64encode(RECORDING.read_bytes()).decode()
    recording = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    content = [recording, {"type": "text", "text": "What is said?"}]
    messages: Any = [{"role": "user", "content": content}]
    answer = client.chat.completions.create(model=HEARING, messages=messages, max_tokens=12, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > 375


def test_errors_name_the_field(client: openai.OpenAI) -> None:
    for change, field in (({"response_format": "srt"}, "response_format"), ({"file": b"no audio"}, "file")):
        with pytest.raises(openai.BadRequestError) as bad:
            client.audio.transcriptions.create(**ASK | change)
        assert bad.value.param == field
