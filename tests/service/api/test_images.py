"""Images in the three chat APIs: the tokens that stand for them, what counts them, and what is refused."""

import asyncio
import base64
import io
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from PIL import Image

from model.chat.conversation import checked
from model.checkpoint.generation_config import GenerationDefaults
from model.media import MediaSpan
from service.api.anthropic.context import Draft, edited
from service.api.anthropic.messages import MessagesBody
from service.api.lanes import SMALL_BYTES
from service.api.media import Media, spans_after
from service.api.openai.chat import ChatBody
from service.api.prompt import chat_request, check_roles
from service.api.responses.routes import ResponsesBody
from service.engine.messages import Submit
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel, longest_piece
from service.images.images import DecodedImage, Images
from tests.fakes import END, IMAGES, IntegerTokenizer, make_info
from tests.faults import helpers
from tests.service.live import FakeChat, Live, answer, refused, running
from tests.waiting import eventually, strike

Json = dict[str, Any]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
IMG, BREAK, STOP = 253, 252, 251
"""Bytes that are in no UTF-8 text."""


class ImageTokenizer(IntegerTokenizer):
    control: dict[str, int] = {"<end>": END, "[IMG]": IMG, "[IMG_BREAK]": BREAK, "[IMG_END]": STOP}  # noqa: RUF012


class ImageChat(FakeChat):
    """`u:text;` a message, with IMG for an image."""

    media_roles: Mapping[str, frozenset[str]] = MappingProxyType({"image": frozenset({"user", "tool"})})

    def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        ids: list[int] = []
        for message in checked(messages):
            ids += f"{message['role'][0]}:".encode()
            for part in message.get("parts", [{"text": message["content"]}]):
                ids += part["text"].encode() if "text" in part else [IMG]
            ids += b";"
        return [*ids, *b"a:"]

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return "".join("[IMG]" if token == IMG else chr(token) for token in self.encode(messages, **options))


class CallingChat(ImageChat):
    call_style = "hermes"


def png(width: int, height: int, colour: str = "red") -> str:
    """A picture in base64."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def url(*size: Any) -> str:
    return f"data:image/png;base64,{png(*size)}"


WIDE, SMALL = png(10, 6), png(3, 4, "blue")
URLS = [f"data:image/png;base64,{data}" for data in (WIDE, SMALL)]
WIDE_ROWS = [*[IMG] * 3, BREAK, *[IMG] * 3, STOP]
"""10 x 6 pixels are 3 x 2 tokens of 4 x 4 pixels."""
SMALL_ROWS = [IMG, STOP]
PROMPT = [*b"u:see ", *WIDE_ROWS, *b" or ", *SMALL_ROWS, *b"?;a:"]


def chat_parts(*parts: str) -> list[Json]:
    """The content of a chat message: data URLs are images."""
    images = ({"type": "image_url", "image_url": {"url": part}} if part.startswith("data:") else None for part in parts)
    return [image or {"type": "text", "text": part} for image, part in zip(images, parts, strict=True)]


def block(data: str) -> Json:
    """An image of Anthropic's API."""
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def item(address: str) -> Json:
    return {"type": "input_image", "image_url": address, "detail": "auto"}


CHAT_BODY: Json = {"messages": [{"role": "user", "content": chat_parts("see ", URLS[0], " or ", URLS[1], "?")}]}
RESPONSES_CONTENT = [
    {"type": "input_text", "text": "see "},
    item(URLS[0]),
    {"type": "input_text", "text": " or "},
    item(URLS[1]),
    {"type": "input_text", "text": "?"},
]
RESPONSES_BODY: Json = {"input": [{"role": "user", "content": RESPONSES_CONTENT}]}
MESSAGES_CONTENT = [
    {"type": "text", "text": "see "},
    block(WIDE),
    {"type": "text", "text": " or "},
    block(SMALL),
    {"type": "text", "text": "?"},
]
MESSAGES_BODY: Json = {"messages": [{"role": "user", "content": MESSAGES_CONTENT}], "max_tokens": 12}


@pytest.fixture(scope="module")
def seeing() -> Iterator[Live]:
    """A server whose model takes images."""
    with running(chat=ImageChat(), tokenizer=ImageTokenizer(), model="images", max_images=3) as server:
        yield server


def served(chat: FakeChat) -> ServedModel:
    tokenizer, info = ImageTokenizer(), make_info(max_model_len=64)
    seeing = replace(info, images=IMAGES)
    return ServedModel(("m",), tokenizer, chat, GenerationDefaults((END,), {}), longest_piece(tokenizer), seeing)


def decoded(rows: int, columns: int, name: str) -> DecodedImage:
    return DecodedImage(rows, columns, name, name.encode() * rows * columns)


A, B = decoded(2, 3, "a"), decoded(1, 1, "b")


def prompt_of(body: ChatBody | ResponsesBody | MessagesBody, model: ServedModel, *images: DecodedImage) -> Submit:
    """The prompt of a body whose images are decoded to these."""
    body.check()
    chat = body.chat()
    check_roles(chat, model)
    assert len(chat.media) == len(images)
    return chat_request(chat, model, Media(images, kept=range(len(images)))).submits[0]


# Who shares what was decoded


@pytest.mark.parametrize(("isolation", "expected"), [("key", [1, 2, 2, 2]), ("none", [1, 1, 1, 1])])
def test_a_key_shares_decoded_images_with_itself_alone(isolation: str, expected: list[int]) -> None:
    """Else the time of an answer would tell a key which images others have sent."""
    keys, decodings = ("first", "second"), []
    with running(
        chat=ImageChat(), tokenizer=ImageTokenizer(), model="images", api_keys=keys, cache_isolation=isolation
    ) as live:
        for key in (*keys, *keys):
            live.http.headers["authorization"] = f"Bearer {key}"
            assert live.post(CHAT, {**CHAT_BODY, "max_tokens": 1}).status_code == 200
            decodings.append(live.metric("noria_image_decode_seconds_count") / 2)
    assert decodings == expected


def test_a_process_that_is_replaced_is_counted(seeing: Live) -> None:
    name, before = "noria_image_process_restarts_total", helpers("model.images.process")
    for n_restarts, picture in enumerate((url(8, 8, "green"), url(8, 8, "pink"))):
        body = {"messages": [{"role": "user", "content": chat_parts(picture)}], "max_tokens": 1}
        assert seeing.post(CHAT, body).status_code == 200
        assert seeing.metric(name) == n_restarts
        for pid in {*helpers("model.images.process")} - {*before}:
            strike(pid, signal.SIGKILL)


# The same tokens in all APIs


def test_all_three_apis_compute_the_same_tokens(seeing: Live) -> None:
    expected = answer(PROMPT, 12)
    body = {**CHAT_BODY, "max_tokens": 12, "return_token_ids": True}
    chat = seeing.post(CHAT, body).json()
    assert chat["prompt_token_ids"] == PROMPT
    assert chat["choices"][0]["message"]["content"] == expected
    assert chat["usage"]["prompt_tokens"] == len(PROMPT)
    assert chat["usage"]["prompt_tokens_details"]["image_tokens"] == 10
    response = seeing.post(RESPONSES, {**RESPONSES_BODY, "max_output_tokens": 12}).json()
    assert response["output"][0]["content"][0]["text"] == expected
    assert response["usage"]["input_tokens"] == len(PROMPT)
    assert response["usage"]["input_tokens_details"]["image_tokens"] == 10
    message = seeing.post(MESSAGES, MESSAGES_BODY).json()
    assert message["content"][0]["text"] == expected
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] == len(PROMPT)


def test_streams_and_choices_have_the_images_too(seeing: Live) -> None:
    events = seeing.events(CHAT, {**CHAT_BODY, "max_tokens": 8, "stream_options": {"include_usage": True}})
    text = "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])
    assert text == answer(PROMPT, 8)
    assert events[-1]["usage"]["prompt_tokens_details"]["image_tokens"] == 10
    whole = seeing.post(CHAT, {**CHAT_BODY, "max_tokens": 8, "n": 2}).json()
    assert [choice["message"]["content"] for choice in whole["choices"]] == [answer(PROMPT, 8, n) for n in (0, 1)]
    assert whole["usage"]["prompt_tokens_details"]["image_tokens"] == 10


def test_an_image_may_be_a_string_as_in_mistrals_api(seeing: Live) -> None:
    parts = [{"type": "image_url", "image_url": URLS[1]}, {"type": "text", "text": "?"}]
    chat = seeing.post(CHAT, {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}).json()
    assert chat["usage"]["prompt_tokens"] == len(b"u:?;a:") + 2


def test_a_text_is_no_image(seeing: Live) -> None:
    chat = seeing.chat("[IMG]", max_tokens=1, return_token_ids=True)
    assert chat["prompt_token_ids"] == [*b"u:[IMG];a:"]
    assert chat["usage"]["prompt_tokens_details"]["image_tokens"] == 0


def test_tokens_are_counted(seeing: Live) -> None:
    assert seeing.post("/tokenize", CHAT_BODY).json()["tokens"] == PROMPT
    counted = seeing.post("/v1/messages/count_tokens", {"messages": MESSAGES_BODY["messages"]}).json()
    assert counted == {"input_tokens": len(PROMPT)}
    assert seeing.post("/apply-template", CHAT_BODY).json() == {"prompt": "u:see [IMG] or [IMG]?;a:"}


# The engine's request


def test_the_request_has_the_places_and_the_pixels() -> None:
    sent = prompt_of(ChatBody.model_validate({**CHAT_BODY, "max_tokens": 4}), served(ImageChat()), A, B)
    assert sent.prompt == PROMPT
    assert sent.media == (MediaSpan(6, 2, 3, "a"), MediaSpan(18, 1, 1, "b"))
    assert [sent.prompt[span.start : span.stop] for span in sent.media] == [WIDE_ROWS, SMALL_ROWS]
    assert sent.inputs == b"aaaaaab"


def test_results_of_tools_may_have_images() -> None:
    """In each API; a call precedes them."""
    call = {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefgh1", "content": chat_parts("got ", URLS[0])},
    ]
    result = {
        "type": "tool_result",
        "tool_use_id": "abcdefgh1",
        "content": [{"type": "text", "text": "got "}, block(WIDE)],
    }
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "abcdefgh1", "name": "f", "input": {}}]},
        {"role": "user", "content": [result]},
    ]
    items = [
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "abcdefgh1", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "abcdefgh1",
            "output": [{"type": "input_text", "text": "got "}, item(URLS[0])],
        },
    ]
    bodies = [
        ChatBody.model_validate({"messages": chat}),
        MessagesBody.model_validate({"messages": messages, "max_tokens": 4}),
        ResponsesBody.model_validate({"input": items}),
    ]
    fields = ["messages[2].content[1].image_url", "messages[2].content[0].content[1].source.data"]
    for body, field in zip(bodies, [*fields, "input[2].output[1].image_url"], strict=True):
        prompt = prompt_of(body, served(CallingChat()), A)
        assert prompt.prompt == [*b"u:x;a:;t:got ", *WIDE_ROWS, *b";a:"]
        with pytest.raises(InvalidRequest, match="cannot write an image in a message of role tool") as caught:
            check_roles(body.chat(), served(ImageChat()))  # its results are told as text
        assert caught.value.param == field


def test_messages_of_one_role_are_joined() -> None:
    """A blank line is where two texts meet, and only there. A result comes first."""

    def text(words: str) -> Json:
        return {"type": "text", "text": words}

    contents: list[Any] = [
        [text("a"), block(WIDE)],
        "b",
        [text("c"), text("d"), block(SMALL)],
        [block(WIDE), text("e")],
    ]
    body = MessagesBody.model_validate(
        {"messages": [{"role": "user", "content": each} for each in contents], "max_tokens": 1}
    )
    (message,) = body.chat().messages
    assert message["content"] == "ab\n\ncde"
    shown = [part.get("text") or part["field"] for part in message["parts"]]
    places = [f"messages[{index}].source.data" for index in ("0].content[1", "2].content[2", "3].content[0")]
    assert shown == ["a", places[0], "b\n\ncd", places[1], places[2], "e"]


def test_an_image_is_cleared_with_its_result() -> None:
    told: list[Any] = [{"role": "user", "content": "a"}]
    for name in ("1", "2"):
        result = {
            "type": "tool_result",
            "tool_use_id": name,
            "content": [{"type": "text", "text": "seen: "}, block(WIDE)],
        }
        told += [{"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": "f", "input": {}}]}]
        told += [{"role": "user", "content": [result]}]
    one = {"type": "tool_uses", "value": 1}
    edits = [{"type": "clear_tool_uses_20250919", "trigger": one, "keep": one}]
    fields = {"messages": told, "max_tokens": 1, "context_management": {"edits": edits}}
    body = MessagesBody.model_validate(fields)
    draft, applied = edited(
        body.context_management, Draft(body.chat(), served(CallingChat()), Media((A, B), kept=(0, 1)))
    )
    assert draft.media.items == [B]
    assert [span.digest for span in draft.prompt[1]] == ["b"]
    assert applied[0]["cleared_input_tokens"] == len("seen: ") + A.rows * (A.columns + 1) - len("[cleared]")


def test_the_images_that_stay_are_decoded_again() -> None:
    """An image of the user stays, and that of a later result goes."""

    async def again() -> Sequence[DecodedImage]:
        return (B, A)

    async def restored() -> bytes:
        media = (await Media.of(again)).only((0,))
        assert media.restore is not None
        assert media.only(()).restore is None
        return await media.restore()

    assert asyncio.run(restored()) == B.inputs


class ForgetfulChat(ImageChat):
    def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        return super().encode(messages[-1:], **options)


def test_a_format_that_leaves_out_an_image_is_found() -> None:
    user = {"role": "user", "content": chat_parts(URLS[0])}
    body = ChatBody.model_validate({"messages": [user, {"role": "assistant", "content": "a"}, user]})
    with pytest.raises(InvalidRequest, match=r"messages cannot be written: .* has places for 1 of 2 images") as caught:
        prompt_of(body, served(ForgetfulChat()), A, B)
    assert caught.value.param == "messages"


# The end of a prompt


def truncated(n_last: int) -> Submit:
    body = {**CHAT_BODY, "max_tokens": 4, "truncate_prompt_tokens": n_last}
    return prompt_of(ChatBody.model_validate(body), served(ImageChat()), A, B)


def test_a_prompt_may_lose_whole_images() -> None:
    """The first image has the tokens 6 to 13, the second 18 and 19."""
    whole = truncated(len(PROMPT) - 6)
    assert whole.prompt == PROMPT[6:]
    assert [span.start for span in whole.media] == [0, 12]
    assert whole.inputs == b"aaaaaab"
    one = truncated(len(PROMPT) - 14)
    assert one.media == (MediaSpan(4, 1, 1, "b"),)
    assert one.inputs == b"b"
    none = truncated(4)
    assert (none.prompt, none.media, none.inputs) == (PROMPT[-4:], (), b"")


@pytest.mark.parametrize("n_cut", [7, 13, 19])
def test_no_prompt_begins_in_an_image(n_cut: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"cuts through an image: it leaves out the first {n_cut} tok") as caught:
        truncated(len(PROMPT) - n_cut)
    assert caught.value.param == "truncate_prompt_tokens"


def test_begin_tokens_stay() -> None:
    """Worked by hand: of 1, 2, 3 and an image at 3..4 the cut leaves the begin token 1 and the image."""
    spans = (MediaSpan(3, 1, 1, "x"),)
    assert spans_after(spans, 1, 2) == (MediaSpan(1, 1, 1, "x"),)
    with pytest.raises(InvalidRequest, match="the image has the tokens 3 to 4"):
        spans_after(spans, 1, 3)


def test_the_context_counts_all_tokens_of_an_image() -> None:
    body = ChatBody.model_validate({**CHAT_BODY, "max_tokens": 1})
    with pytest.raises(InvalidRequest, match="context is 64 tokens, but the request needs") as caught:
        prompt_of(body, served(ImageChat()), decoded(8, 6, "a"), B)
    assert caught.value.param == "messages"
    assert caught.value.code == "context_length_exceeded"


# Refusals


def in_chat(**part: Any) -> Json:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", **part}]}]}


def in_message(source: Json) -> Json:
    return {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}


def said(role: str, *parts: str) -> Json:
    return {"messages": [{"role": role, "content": chat_parts(*parts)}]}


def asked(role: str, part: Json) -> Json:
    return {"input": [{"role": role, "content": [part]}]}


def answered(part: Json) -> Json:
    return {"max_tokens": 1, "messages": [{"role": "assistant", "content": [part]}]}


FIRST, AT = "messages[0].content", "messages[0].content[1].image_url"
ASKED = "input[0].content[0]"
DATA = {"type": "base64", "media_type": "image/png"}
TIFF = {**DATA, "media_type": "image/tiff", "data": WIDE}
REMOTE = {"type": "url", "url": "https://x.y/z"}


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (CHAT, in_chat(image_url="https://example.com/a.png"), AT, ["never fetches", "example.com"]),
        (CHAT, in_chat(image_url={"url": "file:///etc/passwd"}), AT, ["never fetches"]),
        (CHAT, in_chat(image_url={"url": "data:image/png;base64,%%"}), AT, ["base64"]),
        (CHAT, in_chat(image_url="data:image/png;base64,aGVsbG8="), AT, ["image"]),
        (CHAT, in_chat(image_url={"url": URLS[0], "detail": "low"}), f"{AT}.detail", ['"high"', '"low"']),
        (CHAT, in_chat(image_url={"url": 5}), f"{AT}.url", ["must be a string, got 5"]),
        (CHAT, in_chat(image_url=5), AT, ["must be a string or an object, got 5"]),
        (CHAT, in_chat(), AT, ["required"]),
        (CHAT, said("user", *URLS, *URLS), f"{FIRST}[3].image_url", ["at most 3", "got 4", "--max-images"]),
        (CHAT, said("system", "a", URLS[0]), FIRST, ["system", "user or tool"]),
        (CHAT, said("assistant", URLS[0]), FIRST, ["assistant", "user or tool"]),
        (RESPONSES, asked("user", item("https://x.y/z")), f"{ASKED}.image_url", ["never fetches"]),
        (RESPONSES, asked("user", {**item(URLS[0]), "file_id": "f1"}), f"{ASKED}.file_id", ["f1", "null"]),
        (RESPONSES, asked("assistant", item(URLS[0])), "input[0].content", ["assistant", "user or tool"]),
        (MESSAGES, in_message(REMOTE), None, [f"{FIRST}[0].source.type", '"url"', 'only "base64"', "never fetches"]),
        (MESSAGES, in_message({**DATA, "data": "%%"}), None, [f"{FIRST}[0].source.data", "base64"]),
        (MESSAGES, in_message(TIFF), None, [f"{FIRST}[0].source.media_type", "image/tiff"]),
        (MESSAGES, answered(block(WIDE)), None, ["assistant", "image"]),
        ("/v1/completions", {"prompt": chat_parts(URLS[0])}, "prompt", ["a string"]),
        ("/v1/embeddings", {"input": chat_parts(URLS[0])}, "input", ["a string"]),
    ],
)
def test_refusals(seeing: Live, path: str, body: Json, param: str | None, words: list[str]) -> None:
    response = seeing.post(path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error.get("param") == param
    assert [word for word in words if word not in error["message"]] == []
    assert len(error["message"]) < 400


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, CHAT_BODY, "messages[0].content[1].image_url"),
        ("/tokenize", CHAT_BODY, "messages[0].content[1].image_url"),
        ("/apply-template", CHAT_BODY, "messages[0].content[1].image_url"),
        (RESPONSES, RESPONSES_BODY, "input[0].content[1].image_url"),
        (MESSAGES, MESSAGES_BODY, "messages[0].content[1].source.data"),
    ],
)
def test_a_model_without_images(live: Live, path: str, body: Json, field: str) -> None:
    message = live.post(path, body).json()["error"]["message"]
    assert message == f"{field} is not supported: this model takes no images"


def test_a_format_without_images(seeing: Live) -> None:
    """The engine has an encoder, but the format writes no image: the model takes none."""
    with running(tokenizer=ImageTokenizer(), model="images") as live:
        assert refused(live, CHAT, CHAT_BODY)["param"] == "messages[0].content[1].image_url"
        assert not live.http.get("/v1/models/fake").json()["capabilities"]["vision"]


def test_the_time_of_a_request_covers_its_images(seeing: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forever(self: Images, *given: object) -> list[DecodedImage]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(Images, "decode", forever)
    body = seeing.post(CHAT, {**CHAT_BODY, "timeout": 0.2}).json()
    assert body["choices"][0]["finish_reason"] == "timeout"


def test_bodies_whose_images_wait_are_bounded(seeing: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as large bodies until their images are decoded; the one too many gets a 429."""
    state = seeing.state
    waits, waiting = threading.Event(), []
    decode = Images.decode

    async def slow(self: Images, *arguments: Any) -> list[DecodedImage]:
        waiting.append(arguments)
        await asyncio.to_thread(waits.wait)
        return await decode(self, *arguments)

    monkeypatch.setattr(Images, "decode", slow)
    monkeypatch.setattr(state.bodies, "_limit", 3 * 100_000)
    padding = " " * (100_000 + SMALL_BYTES)  # white space in base64 counts too
    content = [{"type": "image_url", "image_url": {"url": URLS[0] + padding}}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    try:
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(seeing.http.post, CHAT, json=body) for _ in range(2)]
            eventually(lambda: len(waiting) == 2, "the images of two bodies wait")
            error = refused(seeing, CHAT, body, status=429)
            assert "bytes of large bodies are in memory" in error["message"]
            waits.set()
            assert [response.result().status_code for response in asked] == [200, 200]
    finally:
        waits.set()
    assert state.bodies.held.total == 0


def test_decoded_bytes_that_wait_for_a_token_are_bounded() -> None:
    """A long answer of text goes first, an image waits, and the next image gets a 429, until the first has its turn."""
    options: Json = {"model": "slow images", "served_model_name": ("fake",), "max_sequences": 1, "max_queue_media": 100}
    with running(chat=ImageChat(), tokenizer=ImageTokenizer(), **options) as live, ThreadPoolExecutor(2) as pool:
        media = live.model("fake").admission.backlog.media
        text = pool.submit(live.post, CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 200})
        eventually(lambda: live.engine.stats.running == 1, "the text is written")
        waiting = pool.submit(live.post, CHAT, CHAT_BODY | {"max_tokens": 2})
        eventually(lambda: media.total > 0, "the images wait")
        assert media.total == (2 * 3 + 1) * 16 * 3  # tokens of 4 x 4 pixels
        error = refused(live, CHAT, CHAT_BODY, 429)
        assert "336 bytes of decoded images and audio are waiting, the limit is 100" in error["message"]
        assert text.result().status_code == waiting.result().status_code == 200
        assert media.total == 0
        assert live.post(CHAT, CHAT_BODY | {"max_tokens": 2}).status_code == 200
