"""Audio over the APIs of a real server, against transformers with the same weights and its own spectra."""

import base64
import io
import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import soxr
import torch
from transformers import WhisperFeatureExtractor

from tests.e2e.server import LiveServer, serving
from tests.model import voxtral
from tests.model.audio.files import SPOKEN
from tests.model.voxtral import AUDIO, BEGIN_AUDIO, NAMES

Json = dict[str, Any]
CHAT, TRANSCRIPTIONS, TRANSLATIONS = "/v1/chat/completions", "/v1/audio/transcriptions", "/v1/audio/translations"
RATE, TOKENS, N = 16_000, 375, 12
INST, END = NAMES.index("[INST]"), NAMES.index("[/INST]")
TRANSCRIBE = NAMES.index("[TRANSCRIBE]")


def sound(seconds: float, pitch: float) -> np.ndarray:
    """A tone that swells, with noise."""
    t = np.arange(int(RATE * seconds)) / RATE
    noise = np.random.default_rng(int(pitch)).standard_normal(len(t)) / 50
    return np.float32(np.sin(t * pitch * 6.28) * np.sin(t * 3) / 2 + noise)


def saved(samples: np.ndarray, kind: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=kind, subtype="FLOAT" if kind == "WAV" else None)
    return file.getvalue()


SHORT, LONG = sound(3, 440), sound(33, 220)


def features(*recordings: np.ndarray) -> torch.Tensor:
    """transformers' spectra [chunks, 128, 3000] of recordings, each filled up with silence to whole chunks."""
    extractor = WhisperFeatureExtractor(feature_size=128)
    found = []
    for samples in recordings:
        padded = np.pad(samples, (0, -len(samples) % (30 * RATE)))
        made = extractor(padded, sampling_rate=RATE, padding=True, truncation=False, return_tensors="pt")
        found.append(made.input_features[0].view(128, -1, 3000).transpose(0, 1))
    return torch.cat(found)


def characters(text: str) -> list[int]:
    return [len(NAMES) + byte for byte in text.encode()]


def log_probabilities(ids: list[int], n_prompt: int, spectra: torch.Tensor) -> torch.Tensor:
    """transformers' log probabilities [n, vocabulary] of the tokens behind the prompt."""
    with torch.no_grad():
        logits = voxtral.build()(input_ids=torch.tensor([ids]), input_features=spectra).logits[0]
    return logits[n_prompt - 1 : -1].log_softmax(-1)


@pytest.fixture(scope="module", params=[voxtral.save_hf, voxtral.save_native], ids=["hf", "native"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    save: Callable[[Path], Path] = request.param
    directory = save(tmp_path_factory.mktemp("model"))
    with serving(str(directory), "--dtype", "float32", "--quantize", "none") as live:
        yield live


def heard(samples: np.ndarray, kind: str = "WAV") -> Json:
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(saved(samples, kind)).decode(), "format": "wav"},
    }


def posted(server: LiveServer, path: str, body: Json) -> Json:
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def asked(*parts: Json | str) -> Json:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": N, "temperature": 0}


def form(
    server: LiveServer, path: str, samples: np.ndarray = SHORT, kind: str = "WAV", **fields: Any
) -> httpx.Response:
    return server.http.post(path, data=fields, files={"file": ("said", saved(samples, kind))})


def test_two_recordings_in_a_chat(server: LiveServer) -> None:
    body = {**asked(heard(LONG), "What?", heard(SHORT)), "logprobs": True, "return_token_ids": True, "ignore_eos": True}
    answer = posted(server, CHAT, body)
    prompt = [1, INST, BEGIN_AUDIO, *[AUDIO] * (2 * TOKENS), *characters("What?")]
    prompt += [BEGIN_AUDIO, *[AUDIO] * TOKENS, END]
    assert answer["prompt_token_ids"] == prompt
    assert answer["usage"]["prompt_tokens_details"]["audio_tokens"] == 3 * TOKENS
    tokens = answer["choices"][0]["token_ids"]
    expected = log_probabilities([*prompt, *tokens], len(prompt), features(LONG, SHORT))
    found = [item["logprob"] for item in answer["choices"][0]["logprobs"]["content"]]
    own = expected.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found), own, atol=1e-4, rtol=0)
    assert tokens == expected.argmax(-1).tolist()


def test_responses_hear_the_same(server: LiveServer) -> None:
    chat = posted(server, CHAT, asked(heard(SHORT), "What?"))
    content = [heard(SHORT), {"type": "input_text", "text": "What?"}]
    body = {"input": [{"role": "user", "content": content}], "max_output_tokens": N, "temperature": 0}
    answer = posted(server, "/v1/responses", body)
    assert answer["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert answer["usage"]["input_tokens_details"]["audio_tokens"] == TOKENS


def generated(samples: np.ndarray, language: str = "") -> tuple[str, int]:
    """The transcript of at most 30 s by transformers, and the number of tokens of its prompt."""
    words = characters(f"lang:{language}" if language else "")
    ids = [1, INST, BEGIN_AUDIO, *[AUDIO] * TOKENS, END, *words, TRANSCRIBE]
    prompt = torch.tensor([ids])
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": N, "do_sample": False}
    with torch.no_grad():
        tokens = voxtral.build().generate(input_ids=prompt, input_features=features(samples), **options)
    said = bytes(token - len(NAMES) for token in tokens[0, len(ids) :].tolist() if token >= len(NAMES))
    return getincrementaldecoder("utf-8")("replace").decode(said), len(
        ids
    )  # without the start of a character at its end


@pytest.mark.parametrize("language", ["", "en"])
def test_a_transcript_is_what_transformers_generates(server: LiveServer, language: str) -> None:
    answer = form(server, TRANSCRIPTIONS, max_tokens=N, language=language).json()
    said, n_prompt = generated(SHORT, language)
    assert answer["text"] == said
    details = {"text_tokens": n_prompt - TOKENS, "audio_tokens": TOKENS}
    assert answer["usage"]["input_token_details"] == details


@pytest.mark.parametrize("path", SPOKEN, ids=lambda path: path.suffix)
def test_speech_in_files_of_other_programs(server: LiveServer, path: Path) -> None:
    """soundfile and soxr by hand give transformers its samples."""
    samples, rate = soundfile.read(path, dtype="float32")
    answer = server.http.post(TRANSCRIPTIONS, data={"max_tokens": N}, files={"file": (path.name, path.read_bytes())})
    assert answer.json()["text"] == generated(soxr.resample(samples, rate, RATE, quality="HQ"))[0]


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3"])
def test_other_files(server: LiveServer, kind: str) -> None:
    answer = form(server, TRANSCRIPTIONS, kind=kind, max_tokens=2)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["output_tokens"] <= 2


def test_a_stream_has_the_whole_text(server: LiveServer) -> None:
    whole = form(server, TRANSCRIPTIONS, max_tokens=N).json()
    response = form(server, TRANSCRIPTIONS, max_tokens=N, stream="true", prompt="Hello")
    assert response.headers["x-noria-ignored"] == "prompt"
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    *deltas, done = events
    assert {event["type"] for event in deltas} == {"transcript.text.delta"}
    assert "".join(event["delta"] for event in deltas) == done["text"] == whole["text"]
    assert (done["type"], done["usage"]) == ("transcript.text.done", whole["usage"])


def test_formats_of_answers(server: LiveServer) -> None:
    whole = form(server, TRANSCRIPTIONS, max_tokens=N).json()
    text = form(server, TRANSCRIPTIONS, max_tokens=N, response_format="text")
    assert (text.text, text.headers["content-type"]) == (whole["text"] + "\n", "text/plain; charset=utf-8")
    verbose = form(server, TRANSCRIPTIONS, max_tokens=N, response_format="verbose_json", language="en").json()
    assert (verbose["task"], verbose["language"], verbose["duration"]) == ("transcribe", "en", 3.0)
    assert "segments" not in verbose
    translated = form(server, TRANSLATIONS, max_tokens=N, response_format="verbose_json").json()
    assert translated["task"] == "translate"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"response_format": "srt"},
            "response_format srt is not supported: the model gives neither times nor speakers",
        ),
        ({"response_format": "xml"}, "response_format must be one of json, text, verbose_json, got 'xml'"),
        ({"response_format": "text", "stream": "true"}, "response_format must be json when stream is true, got text"),
        ({"language": "english"}, "language must match the pattern"),
        ({"temperature": "hot"}, "temperature must be a"),
        ({"temperature": "-1"}, "temperature must be"),
        ({"max_tokens": "0"}, 'max_tokens must be greater than or equal to 1, got "0"'),
        ({"mood": "1"}, "unknown field 'mood'"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities is not supported"),
        ({"model": "other"}, "other"),
    ],
)
def test_wrong_fields_are_named(server: LiveServer, fields: Json, message: str) -> None:
    response = form(server, TRANSCRIPTIONS, **fields)
    assert response.status_code == (404 if "model" in fields else 400)
    assert message in response.json()["error"]["message"]


def test_forms_that_are_none(server: LiveServer) -> None:
    post = server.http.post
    assert post(TRANSCRIPTIONS, json={"file": "x"}).status_code == 415
    head = {"content-type": "multipart/form-data; boundary=x"}
    for content, message in (
        (b"--x\r\n", "the form cannot be read"),
        (b"", "the form cannot be read"),
        (b"nothing", "the form cannot be read"),
        (b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\na\r\n--x--\r\n', "file is required"),
    ):
        response = post(TRANSCRIPTIONS, content=content, headers=head)
        assert response.status_code == 400
        assert message in response.json()["error"]["message"]
    empty = post(TRANSCRIPTIONS, files={"file": ("said", b"")}).json()["error"]
    assert (empty["message"], empty["param"]) == ("file has no data", "file")
    noise = post(TRANSCRIPTIONS, files={"file": ("said.wav", b"RIFF" + bytes(999))}).json()["error"]
    assert noise["code"] == "invalid_audio"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("language", "en"), ("language[]", "en")], 'the form has the field "language" twice'),
        ([("include[]", "x"), ("include", "x")], 'the form has the field "include" twice'),
        ([("max_tokens", "5"), ("max_tokens", "5")], 'the form has the field "max_tokens" twice'),
        ([("include[]", "x")] * 99, "a form may have at most 64 fields"),
        ([("receipt", "true")], "receipt is not supported here"),
    ],
)
def test_parts_that_a_form_may_not_have(server: LiveServer, parts: list[tuple[str, str]], message: str) -> None:
    lines = [f'--x\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts]
    file = b'--x\r\ncontent-disposition: form-data; name="file"\r\n\r\n' + saved(SHORT) + b"\r\n--x--\r\n"
    head = {"content-type": "multipart/form-data; boundary=x"}
    response = server.http.post(TRANSCRIPTIONS, content="".join(lines).encode() + file, headers=head)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]


def test_a_file_may_have_no_name_but_belongs_to_its_field(server: LiveServer) -> None:
    body = b'--x\r\ncontent-disposition: form-data; name="file"\r\n\r\n' + saved(SHORT) + b"\r\n--x\r\n"
    body += b'content-disposition: form-data; name="max_tokens"\r\n\r\n2\r\n--x--\r\n'
    head = {"content-type": "multipart/form-data; boundary=x"}
    assert server.http.post(TRANSCRIPTIONS, content=body, headers=head).status_code == 200
    error = server.http.post(TRANSCRIPTIONS, files={"mood": ("a", b"x")}).json()["error"]
    assert error["message"] == 'the form has a file in the field "mood", which takes none'
    long = {"content-type": f"multipart/form-data; boundary={'x' * 300}"}
    refused = server.http.post(TRANSCRIPTIONS, content=body, headers=long)
    assert refused.status_code == 415
    assert "300 bytes, the limit is 70" in refused.json()["error"]["message"]


def test_a_recording_that_the_context_does_not_hold(server: LiveServer) -> None:
    """2,048 tokens hold 5 chunks."""
    error = form(server, TRANSCRIPTIONS, np.zeros(160 * RATE, np.float32), "FLAC").json()["error"]
    assert "lasts 160" in error["message"]
    assert "150 s" in error["message"]


def test_the_same_recording_is_encoded_once_and_others_are_not_taken_for_it(server: LiveServer) -> None:
    first = server.http.post(CHAT, json=asked(heard(SHORT), "Again?")).json()
    again = server.http.post(CHAT, json=asked(heard(SHORT), "Again?")).json()
    assert again["choices"] == first["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > TOKENS
    other = server.http.post(CHAT, json=asked(heard(sound(3, 441)), "Again?")).json()
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] < TOKENS


def test_only_users_are_heard(server: LiveServer) -> None:
    body = {"messages": [{"role": "assistant", "content": [heard(SHORT)]}], "max_tokens": 1}
    error = server.http.post(CHAT, json=body).json()["error"]
    assert "audio is allowed only in messages of role user, got role assistant" in error["message"]
    url = {"type": "input_audio", "input_audio": "https://host.example/said.wav"}
    error = server.http.post(CHAT, json=asked(url)).json()["error"]
    assert "Noria never fetches audio: send the file in base64" in error["message"]
