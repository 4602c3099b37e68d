"""What the commands do with files, images and the fields of other servers; no terminal is needed."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from model.errors import OptionError
from service.commands.chat.conversation import Conversation, End, Piece, Progress
from service.commands.chat.server import RequestField, model_card, request_fields, sees_images, settable
from service.commands.chat.slash import Slash
from tests.service.commands.fake_openai import FakeOpenAI, serving
from tests.service.live import running


@pytest.fixture
def fake() -> FakeOpenAI:
    return FakeOpenAI(pieces=("Yes", "."))


@pytest.fixture
def chat(fake: FakeOpenAI) -> Iterator[Conversation]:
    with serving(fake) as url, httpx.Client(base_url=url) as client:
        yield Conversation(client, "fake-1", None, {})


def test_an_image_goes_with_the_next_message_of_a_model_that_sees(
    fake: FakeOpenAI, chat: Conversation, tmp_path: Path
) -> None:
    fake.capabilities = ("completion", "vision")
    image = tmp_path / "wheel.png"
    image.write_bytes(b"\x89PNG")
    slash = Slash(chat, {}, model_card(chat.client, chat.model))
    assert slash.obey(f"/image {image}").text == "wheel.png goes with the next message"
    for name, kind in (("a.WEBP", "webp"), ("a b.jpeg", "jpeg")):
        (tmp_path / name).write_bytes(b"x")
        slash.obey(f"/image {tmp_path / name}")
        assert chat.images.pop() == f"data:image/{kind};base64,eA=="
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


def test_names_of_files_are_completed(chat: Conversation, tmp_path: Path) -> None:
    for name in ("wheel.png", "wheat.txt"):
        (tmp_path / name).touch()
    (tmp_path / "whole").mkdir()
    completer = Slash(chat, {}, {}).words()

    def completed(line: str) -> list[str]:
        return [found.text for found in completer.get_completions(Document(line), CompleteEvent())]

    assert completed(f"/image {tmp_path}/wh") == ["eel.png", "ole"]
    assert completed(f"/load {tmp_path}/wh") == ["eat.txt", "eel.png", "ole"]


def test_a_file_that_is_no_conversation_is_neither_loaded_nor_overwritten(chat: Conversation, tmp_path: Path) -> None:
    chat.messages = [{"role": "user", "content": "Hi"}]
    slash, path = Slash(chat, {}, {}), tmp_path / "notes"
    for text, reason in (
        ("my notes", "not JSON"),
        ("{}", "JSON list of messages"),
        ("[]", "JSON list of messages"),
        ('[{"role": "king", "content": "Hi"}]', 'message 0: role must be .* got "king"'),
        ('[{"role": "user", "content": null}]', "message 0: content must be"),
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


def test_the_body_of_a_request_is_a_conversation(chat: Conversation, tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (tmp_path / "body").write_text(json.dumps({"messages": messages, "temperature": 1}))
    Slash(chat, {}, {}).obey(f"/load {tmp_path / 'body'}")
    assert chat.history() == messages
    assert Slash(chat, {}, {}).obey("/retry").then == "answer"


def test_a_server_without_a_document_gets_any_field(fake: FakeOpenAI, chat: Conversation) -> None:
    assert request_fields(httpx.Client(base_url="http://127.0.0.1:9")) == {}
    slash = Slash(chat, {}, {})
    slash.obey("/set temperature 0.25")
    slash.obey('/set stop ["a", "b"]')
    assert "temperature  0.25" in slash.obey("/set").text
    chat.say("Hi")
    assert list(chat.answer()) == [Piece("Yes"), Piece("."), End("length")]
    assert (fake.requests[0]["temperature"], fake.requests[0]["stop"]) == (0.25, ["a", "b"])


def test_the_card_of_the_model_gives_its_defaults_and_its_sight(chat: Conversation) -> None:
    card = {"defaults": {"temperature": 0.2, "top_k": 40.0}, "capabilities": {"vision": False}}
    fields = {name: RequestField(name, ("number",)) for name in ("temperature", "top_k", "top_p")}
    slash = Slash(chat, fields, card)
    slash.obey("/set temperature 1")
    assert slash.obey("/set").text.split() == [
        *("temperature", "1", "a", "number"),
        *("top_k", "default", "40", "a", "number"),
        *("top_p", "default", "a", "number"),
    ]
    assert slash.obey("/set temperature default").text == "temperature default 0.2"
    assert not sees_images(card)
    assert sees_images({"capabilities": {"vision": True}})
    assert not sees_images({})


def test_every_range_is_that_of_the_server() -> None:
    """The server refuses what the chat refuses, just outside each limit, and takes each limit itself."""
    with running() as live:
        fields = settable(request_fields(live.http))
        assert {"temperature", "top_p", "max_tokens", "seed", "stop", "min_p"} <= fields.keys()
        assert not {"messages", "model", "stream", "store", "mirostat"} & fields.keys()
        for name in ("temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"):
            field = fields[name]
            for limit, outside in ((field.least, -0.001), (field.most, 0.001)):
                assert field.read(str(limit)) == limit
                assert live.chat("Hi", max_tokens=1, **{name: limit})
                with pytest.raises(OptionError, match=f"{name} must be a number from"):
                    field.read(str(limit + outside))
                body = {"messages": [{"role": "user", "content": "Hi"}], name: limit + outside}
                assert live.post("/v1/chat/completions", body).status_code == 400
        with pytest.raises(OptionError, match="seed must be an integer, got true"):
            fields["seed"].read("true")
        assert fields["stop"].read("END") == "END"
        assert fields["reasoning_effort"].read("none") == "none"
        with pytest.raises(OptionError, match="reasoning_effort must be one of none, minimal"):
            fields["reasoning_effort"].read("huge")


def test_progress_comes_from_the_server() -> None:
    with running(model="slow", max_step_tokens=64) as live:
        chat = Conversation(live.http, "fake", None, {"max_tokens": 2})
        chat.hidden["return_progress"] = True
        chat.say("word " * 600)
        progress = [event for event in chat.answer() if isinstance(event, Progress)]
        assert len(progress) >= 2
        assert progress[-1].processed == progress[-1].total > 3000


def test_ranges_in_words() -> None:
    assert RequestField("a", ("integer",), least=1).range == "an integer of at least 1"
    assert RequestField("a", ("number",), above=0, most=86400.0).range == "a number above 0, at most 86400"
    assert RequestField("a", ("string", "array")).range == "a string or an array"
    assert RequestField("a").range == "any value"


@pytest.mark.parametrize("place", ["~no-such-user/chat", "/dev/zero", "x" * 300])
def test_a_place_that_is_no_file_is_one_line(place: str, chat: Conversation) -> None:
    chat.messages = [{"role": "user", "content": "Hi"}]
    for command in ("save", "load"):
        with pytest.raises(OptionError, match=r"no user no-such-user|cannot be (read|written)|not a regular file"):
            Slash(chat, {}, {}).obey(f"/{command} {place}")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '[{"role": "user", "content": [{"x": NaN}]}]', '[{"content": "\\ud800"}]']
)
def test_what_no_request_may_have_is_not_loaded(text: str, chat: Conversation, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text.replace('{"content"', '{"role": "user", "content"'))
    with pytest.raises(OptionError, match="holds no conversation"):
        Slash(chat, {}, {}).obey(f"/load {tmp_path / 'file'}")


def test_a_system_message_of_parts_is_shown_as_json(chat: Conversation) -> None:
    part = {"type": "text", "text": "Be brief."}
    chat.replace([{"role": "system", "content": [part]}, {"role": "user", "content": "Hi"}])
    assert Slash(chat, {}, {}).obey("/system").text == f"system message: {json.dumps([part])}"


def test_values_that_json_cannot_write_are_refused() -> None:
    bias = RequestField("logit_bias", ("object",))
    for text in ('{"1": NaN}', '{"1": 1e999}', '{"1": "\\ud800"}'):
        with pytest.raises(OptionError, match="logit_bias must be an object, got"):
            bias.read(text)
    assert RequestField("max_tokens", ("integer",)).read("1e3") == 1000


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
        conversation = Conversation(client, "other-1", None, {})
        conversation.say("Hi")
        with pytest.raises(OptionError, match=error):
            list(conversation.answer())


def test_chunks_of_other_servers_without_choices_or_a_delta() -> None:
    chunks = [b'data: {"choices": null, "error": null}\n\n', b'data: {"choices": [{"delta": null}]}\n\n', CHUNK]
    body = b"".join([*chunks, b"data: [DONE]\n\n"])
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    with httpx.Client(base_url="http://other", transport=transport) as client:
        assert list(Conversation(client, "other-1", None, {}).answer()) == [Piece("Yes")]
