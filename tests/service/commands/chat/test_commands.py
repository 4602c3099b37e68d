"""What the commands do with files, images and the fields of other servers; no terminal is needed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from model.errors import OptionError
from service.commands.chat.conversation import ChatSession, End, Piece
from service.commands.chat.slash import Slash
from service.commands.endpoint import is_noria, read_card
from tests.service.commands.fake_openai import FakeOpenAI, serving
from tests.service.hosting.serving import LATE, states
from tests.service.hosting.serving import serving as serving_models
from tests.waiting import PATIENCE


@pytest.fixture
def fake() -> FakeOpenAI:
    return FakeOpenAI(pieces=("Yes", "."))


@pytest.fixture
def chat(fake: FakeOpenAI) -> Iterator[ChatSession]:
    with serving(fake) as url, httpx.Client(base_url=url) as client:
        yield ChatSession(client, "fake-1", None, {})


def test_an_image_goes_with_the_next_message(fake: FakeOpenAI, chat: ChatSession, tmp_path: Path) -> None:
    image = tmp_path / "wheel.png"
    image.write_bytes(b"\x89PNG")
    slash = Slash(chat)
    assert slash.obey(f"/image {image}").text == "wheel.png goes with the next message"
    for name, kind in (("a.WEBP", "webp"), ("a b.jpeg", "jpeg")):
        (tmp_path / name).write_bytes(b"x")
        slash.obey(f"/image {tmp_path / name}")
        assert chat.images.pop()["image_url"]["url"] == f"data:image/{kind};base64,eA=="
    for text in ("What is this?", "Sure?"):
        chat.say(text)
        list(chat.answer())
    url = {"url": "data:image/png;base64,iVBORw=="}
    first, _, second = fake.requests[1]["messages"]
    assert first["content"] == [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": url}]
    assert second["content"] == "Sure?"
    for wrong in ("missing.png", "notes.txt", "drawing.svg", ""):
        with pytest.raises(OptionError, match=wrong or "name of a file"):
            slash.obey(f"/image {wrong}")


def test_a_recording_goes_before_the_text_of_the_next_message(
    fake: FakeOpenAI, chat: ChatSession, tmp_path: Path
) -> None:
    (tmp_path / "said.MP3").write_bytes(b"x")
    slash = Slash(chat)
    assert slash.obey(f"/audio {tmp_path / 'said.MP3'}").text == "said.MP3 goes with the next message"
    chat.say("What is said?")
    list(chat.answer())
    heard = {"type": "input_audio", "input_audio": {"data": "eA==", "format": "mp3"}}
    assert fake.requests[0]["messages"][0]["content"] == [heard, {"type": "text", "text": "What is said?"}]
    with pytest.raises(OptionError, match="is no audio by its name; expected"):
        slash.obey(f"/audio {tmp_path / 'said.m4a'}")


def test_a_file_that_is_no_conversation_is_neither_loaded_nor_overwritten(chat: ChatSession, tmp_path: Path) -> None:
    chat.messages = [{"role": "user", "content": "Hi"}]
    slash, path = Slash(chat), tmp_path / "notes"
    for text, reason in (
        ("my notes", "not JSON"),
        ("{}", "JSON list of messages"),
        ("[]", "JSON list of messages"),
        ('[{"role": "king", "content": "Hi"}]', 'message 0: role must be .* got "king"'),
        ('[{"role": "user", "content": null}]', "message 0: content must be"),
        ('[{"role": "user", "content": "\\ud800"}]', "half a character"),
        ('[{"role": "user", "content": [{"x": NaN}]}]', "a number like NaN"),
    ):
        path.write_text(text)
        for command in ("save", "load"):
            with pytest.raises(OptionError, match=reason):
                slash.obey(f"/{command} {path}")
        assert path.read_text() == text
    assert chat.messages == [{"role": "user", "content": "Hi"}]
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        slash.obey(f"/load {tmp_path / 'missing'}")
    with pytest.raises(OptionError, match="cannot be written: No such file"):
        slash.obey(f"/save {tmp_path / 'missing' / 'file'}")


def test_the_body_of_a_request_is_a_conversation(chat: ChatSession, tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (tmp_path / "body").write_text(json.dumps({"messages": messages, "temperature": 1}))
    Slash(chat).obey(f"/load {tmp_path / 'body'}")
    assert chat.history() == messages
    assert Slash(chat).obey("/retry").then == "answer"


def test_what_is_set_is_sent_as_json_or_as_text(fake: FakeOpenAI, chat: ChatSession) -> None:
    slash = Slash(chat)
    values = {"temperature": "0.25", "stop": '["a", "b"]', "max_tokens": "1e3", "user": "me"}
    for name, text in values.items():
        slash.obey(f"/set {name} {text}")
    assert "temperature 0.25" in slash.obey("/set").text
    assert slash.obey("/set user default").text == "user default"
    chat.say("Hi")
    assert list(chat.answer()) == [Piece("Yes"), Piece("."), End("length")]
    sent = {name: fake.requests[0].get(name) for name in values}
    assert sent == {"temperature": 0.25, "stop": ["a", "b"], "max_tokens": 1000, "user": None}


@pytest.mark.parametrize("place", ["~no-such-user/chat", "/dev/zero", "x" * 300])
def test_a_place_that_is_no_file_is_one_line(place: str, chat: ChatSession) -> None:
    chat.messages = [{"role": "user", "content": "Hi"}]
    for command in ("save", "load"):
        with pytest.raises(OptionError, match=r"no user no-such-user|cannot be (read|written)|not a regular file"):
            Slash(chat).obey(f"/{command} {place}")


def test_models_their_states_and_the_switch(tmp_path: Path) -> None:
    entries = {"small": {}, "late": {"source": "recite", **LATE}, "bad": {"source": "broken"}}
    with serving_models(tmp_path, entries) as live:
        chat = ChatSession(live.http, "small", None, {})
        slash = Slash(chat)
        reason = live.http.get("/v1/models/bad").json()["reason"]
        listed = slash.obey("/model").text.splitlines()
        assert listed == ["* small  ready", "  late   unloaded", f"  bad    failed: {reason}"]
        with pytest.raises(OptionError, match=r"^no model smal; the server has small, late, bad$"):
            slash.obey("/model smal")
        with pytest.raises(OptionError, match=f"^the model bad could not be loaded: {re.escape(reason)}"):
            slash.obey("/model bad")
        assert chat.model == "small"
        assert slash.obey("/model late").text == "late answers from now on"
        assert states(live)["late"] == "ready"
        chat.say("Hi")
        assert "".join(event.text for event in chat.answer() if isinstance(event, Piece)) == "Hi"
        assert slash.obey("/model").text.splitlines()[1] == "* late   ready"


def test_a_key_that_may_not_load_models_leaves_it_to_the_message(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text('[[keys]]\nname = "guest"\nkey = "guest-key"\n')
    entries = {"small": {}, "late": {"source": "recite", **LATE}}
    with serving_models(tmp_path, entries, api_key_file=tmp_path / "keys.toml") as live:
        headers = {"Authorization": "Bearer guest-key"}
        with httpx.Client(base_url=live.url, headers=headers, timeout=PATIENCE) as client:
            chat = ChatSession(client, "small", None, {})
            assert Slash(chat).obey("/model late").text == "late answers from now on"
            assert states(live, **headers)["late"] == "unloaded"
            chat.say("Hi")
            assert "".join(event.text for event in chat.answer() if isinstance(event, Piece)) == "Hi"


def test_the_card_of_a_model_is_found_whatever_its_name(tmp_path: Path) -> None:
    name = "org/c#?%20 x"
    with serving_models(tmp_path, {"a": {}, name: LATE}) as live:
        assert read_card(live.http, name)["state"] == "unloaded"
        assert is_noria(live.http, name)


def test_models_of_other_servers_have_no_state(fake: FakeOpenAI, chat: ChatSession) -> None:
    fake.models = ("fake-1", "org/second")
    slash = Slash(chat)
    assert slash.obey("/model").text == "* fake-1\n  org/second"
    slash.obey("/model org/second")
    chat.say("Hi")
    list(chat.answer())
    assert fake.requests[0]["model"] == "org/second"


def test_a_system_message_of_parts_is_shown_as_json(chat: ChatSession) -> None:
    part = {"type": "text", "text": "Be brief."}
    chat.replace([{"role": "system", "content": [part]}, {"role": "user", "content": "Hi"}])
    assert Slash(chat).obey("/system").text == f"system message: {json.dumps([part])}"


CHUNK = b'data: {"choices": [{"delta": {"content": "Yes"}}]}\n\n'


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, CHUNK + b"data: <html>\n\n", "what is no part of an answer: <html>"),
        (200, CHUNK + b"data: [1]\n\n", r"what is no part of an answer: \[1\]"),
        (200, b'data: {"choices": [{"delta": {"content": 3}}]}\n\n', "what is no part of an answer"),
        (200, CHUNK, "the stream ended before the answer did"),
        (200, b"<html>welcome</html>", "the stream ended before the answer did"),
        (500, b"", "the server answered 500 Internal Server Error$"),
        (502, b"<html>\nBad</html>", "the server answered 502 Bad Gateway: <html> Bad</html>$"),
        (422, b'{"detail": [{"loc": ["body"], "msg": null}]}', r'{"detail": \[{"loc": \["body"\], "msg": null}\]}$'),
        (400, b'{"error": {"message": null, "code": 3}}', '{"message": null, "code": 3}$'),
    ],
)
def test_a_strange_answer_is_an_error_and_not_the_end_of_the_chat(status: int, body: bytes, error: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body))
    with httpx.Client(base_url="http://other", transport=transport) as client:
        conversation = ChatSession(client, "other-1", None, {})
        conversation.say("Hi")
        with pytest.raises(OptionError, match=error):
            list(conversation.answer())


def test_chunks_of_other_servers_without_choices_or_a_delta() -> None:
    chunks = [b'data: {"choices": null, "error": null}\n\n', b'data: {"choices": [{"delta": null}]}\n\n', CHUNK]
    body = b"".join([*chunks, b"data: [DONE]\n\n"])
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    with httpx.Client(base_url="http://other", transport=transport) as client:
        assert list(ChatSession(client, "other-1", None, {}).answer()) == [Piece("Yes")]
