"""Expensive bodies of legal size: few errors, no work on the event loop, no tokenizing of too long texts."""

import codecs
import contextlib
import json
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError

from model.errors import quoted
from service.api.lanes import SMALL_BYTES
from service.api.openai.chat import ChatBody
from service.api.openai.completions import CompletionBody
from service.api.state import LARGE_BODIES
from service.api.tokens import DetokenizeBody, TokenizeBody
from service.schema.conversation import Content
from service.schema.fields import Prompts
from service.schema.generation import Stops
from tests.fakes import IntegerTokenizer
from tests.service.http.connection.raw import START, connected
from tests.service.live import USER, FakeChat, Live, begun, ready, refused, running
from tests.waiting import PATIENCE, eventually

MANY = 3000


def union(annotated: Any) -> Any:
    """The type that has one message for all its errors."""
    return get_args(annotated)[0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (union(Prompts), [1] * MANY + ["a"]),
        (union(Prompts), ["a"] * MANY + [1]),
        (union(Prompts), [1.5] * MANY),
        (union(Prompts), [["a"] * MANY] * 3),
        (union(Stops), [1] * MANY),
        (union(Content), [{}] * MANY),
        (ChatBody, {"messages": [1] * MANY}),
        (TokenizeBody, {"messages": [{}] * MANY}),
        (DetokenizeBody, {"tokens": ["a"] * MANY}),
        (CompletionBody, {"prompt": "a", "stop_token_ids": ["a"] * MANY}),
        (CompletionBody, {"prompt": "a", "n": 0, "logit_bias": {str(n): "x" for n in range(MANY)}}),
    ],
)
def test_a_bad_list_has_few_errors(kind: Any, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_json(json.dumps(value))
    assert caught.value.error_count() < 10


def test_a_large_body_is_checked_on_a_thread_of_its_own(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(CompletionBody, "check", lambda body: threads.append(threading.get_ident()))
    small = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    for content in (small, small, small.ljust(100_000)):
        headers = {"content-type": "application/json"}
        assert live.http.post("/v1/completions", content=content, headers=headers).status_code == 200
    loop, again, worker = threads
    assert loop == again != worker


class Watched(IntegerTokenizer):
    """A tokenizer that counts its texts."""

    encoded = 0

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        self.encoded += 1
        return super().encode(text, add_bos=add_bos, parse_control=parse_control)


def test_text_that_cannot_fit_is_refused_before_it_is_tokenized() -> None:
    tokenizer = Watched()
    # The longest token is "<end>" with its 5 bytes, so 64 tokens hold at most 320; "é" has 2.
    with running(tokenizer=tokenizer, max_model_len=64) as live:
        longest, too_long = "<end>" * 63 + "x" * 5, "é" * 160 + "x"
        assert live.post("/tokenize", {"prompt": longest}).json()["count"] == 68
        done = tokenizer.encoded
        messages = [{"role": "user", "content": too_long}]
        for path, body in (
            ("/v1/completions", {"prompt": [too_long]}),
            ("/v1/chat/completions", {"messages": messages}),
            ("/tokenize", {"prompt": too_long}),
            ("/tokenize", {"messages": messages}),
        ):
            response = live.post(path, body)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
            assert error["param"] in body
            assert all(number in error["message"] for number in ("64", "320", "321"))
        assert tokenizer.encoded == done


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [97]})])
def test_tokenizing_takes_a_place_in_the_queue(path: str, body: dict[str, Any]) -> None:
    with running(model="slow", max_sequences=1, max_queue=0) as live:
        assert live.post(path, body).status_code == 200
        with begun(live):
            full = live.post(path, body)
            assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
            live.server.handle_exit(signal.SIGTERM, None)
            eventually(lambda: not ready(live.http), "readiness flips")
            late = live.post(path, body)
            assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")


LISTS = [[]] * 100_000
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": json.dumps({"a": [[]] * 8_000})}
"""The lists in the arguments of five calls are too many together."""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LISTS}),
        ("/v1/completions", {"prompt": "a", "unknown": LISTS}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(n): 0 for n in range(100_000)}}),
        ("/v1/completions", {"prompt": "a", "guided_json": json.dumps({"enum": LISTS})}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{}] * 100_000}]}),
        ("/v1/chat/completions", {"messages": USER, "chat_template_kwargs": {"tone": LISTS}}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{}] * 100_000}], "max_tokens": 1}),
        ("/v1/responses", {"input": [{}] * 100_000}),
        ("/v1/responses", {"input": [CALL] * 5}),
    ],
)
def test_a_structure_beyond_the_limits_is_refused_before_it_is_parsed(live: Live, path: str, body: Any) -> None:
    response = live.post(path, body)
    message = response.json()["error"]["message"]
    assert response.status_code == 400
    assert re.search(r"has at least \d+ (lists and objects|names of fields), the limit is \d+$", message)


def test_many_token_ids_are_read(live: Live) -> None:
    """As many as four prompts of 128k tokens."""
    response = live.post("/v1/completions", {"prompt": [[7] * 2**17] * 4})
    assert response.json()["error"]["message"].startswith(
        "this model's context is 512 tokens, but the request needs 131"
    )


def test_errors_are_short_whatever_the_names_are(live: Live) -> None:
    name = "x" * 1_000_000
    many = {f"f{n}": n for n in range(MANY)}
    for body in ({name: 1}, many, {"logit_bias": {name: "a"}}, {"structured_outputs": {name: 1}}):
        response = live.post("/v1/completions", {"prompt": "a", **body})
        assert response.status_code == 400
        assert len(response.content) < 1000


class Slow(IntegerTokenizer):
    """A tokenizer that waits with texts of "wait", and records all texts."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.texts: list[str] = []

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        self.texts.append(text)
        if text == "wait":
            assert self.may.wait(PATIENCE)
        return super().encode(text, add_bos=add_bos, parse_control=parse_control)


@contextmanager
def sent(live: Live, path: str, body: dict[str, Any], pad: int = 0) -> Iterator[None]:
    """A request whose client goes away at the end of the context."""
    content = json.dumps(body).encode().ljust(pad)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((live.http.base_url.host, live.http.base_url.port)) as connection:
        connection.sendall(head.encode() + content)
        yield


def aborted(live: Live, n: int) -> Callable[[], bool]:
    return lambda: live.metric("noria_requests_total", outcome="abort") == n


@pytest.mark.parametrize("pad", [0, 100_000])
def test_the_work_of_a_client_that_has_gone_is_dropped(pad: int) -> None:
    """Its text is never tokenized, and with a large body its fields are never checked."""
    tokenizer = Slow()
    with running(tokenizer=tokenizer) as live:
        state = live.state
        with sent(live, "/tokenize", {"prompt": "wait"}, pad):
            eventually(lambda: tokenizer.texts == ["wait"], "the thread is busy")
            with sent(live, "/v1/completions", {"prompt": "gone"}, pad):
                eventually(
                    lambda: state.bodies.held.total or state.models.first.admission.in_flight > 1, "the request waits"
                )
            eventually(aborted(live, 1), "the server sees that the client has gone")
            tokenizer.may.set()
        assert live.complete(prompt="here", max_tokens=1)["choices"]
    assert [text for text in tokenizer.texts if text] == ["wait", "here"]


def test_large_bodies_do_not_hold_up_small_ones() -> None:
    tokenizer = Slow()
    with running(tokenizer=tokenizer) as live, contextlib.ExitStack() as stack:
        for pad in (100_000, 2_000_000) * 2:
            stack.enter_context(sent(live, "/tokenize", {"prompt": "wait"}, pad))
        eventually(lambda: tokenizer.texts == ["wait"] * 2, "the threads of large bodies are busy")
        assert live.complete(prompt="here", max_tokens=1)["choices"]
        tokenizer.may.set()


@pytest.mark.parametrize(("may_strip", "size"), [(True, 405), (False, 400)])
def test_spaces_that_stay_in_the_prompt_are_not_tokenized(
    may_strip: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template may strip white space. What it leaves is measured before it is tokenized."""
    monkeypatch.setattr(FakeChat, "may_strip", may_strip)
    tokenizer = Watched()
    with running(tokenizer=tokenizer, max_model_len=64) as live:
        done = tokenizer.encoded
        for path in ("/v1/chat/completions", "/tokenize"):
            error = refused(live, path, {"messages": [{"role": "user", "content": " " * 400}]})
            assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
            assert f"at most 320 bytes of text, but messages has {size}" in error["message"]
        assert tokenizer.encoded == done


def test_a_byte_order_mark_is_skipped(live: Live) -> None:
    for pad in (0, 100_000):
        content = codecs.BOM_UTF8 + json.dumps({"prompt": "a", "max_tokens": 1}).encode().ljust(pad)
        headers = {"content-type": "application/json"}
        assert live.http.post("/v1/completions", content=content, headers=headers).status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "rot13", "identity, GZIP"])
def test_a_content_coding_is_refused(live: Live, coding: str) -> None:
    response = live.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"content-encoding": coding})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (415, "unsupported_media_type")
    assert (
        error["message"] == f"content-encoding must be identity: bodies are not compressed here, got {quoted(coding)}"
    )
    assert response.headers["accept-encoding"] == "identity"
    for plain in ("identity", ""):
        response = live.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"content-encoding": plain})
        assert response.status_code == 200


LIMIT = LARGE_BODIES * 200_000
"""Bytes of large bodies in memory with `--max-body 200000`. The first 64 KiB of each do not count."""
BEGUN = 190_000
"""Bytes that slow clients send of such a body."""
N_SLOW = LIMIT // (BEGUN - SMALL_BYTES)
"""As many of them as may be in memory: one more that is whole is too much."""


def padded(live: Live, **options: Any) -> httpx.Response:
    """The response to a small request in a body of the largest size."""
    content = json.dumps({"prompt": "a", "max_tokens": 1}).encode().ljust(200_000)
    transport = httpx.HTTPTransport(local_address=options.pop("source", None))
    headers = {"content-type": "application/json"} | options
    with httpx.Client(base_url=live.url, transport=transport, timeout=PATIENCE) as http:
        return http.post("/v1/completions", content=content, headers=headers)


@pytest.mark.parametrize("keys", [(), ("slow", "other")])
def test_large_bodies_of_one_sender_keep_no_other_out(keys: tuple[str, ...]) -> None:
    """A client sends most of each of many bodies, and waits. With keys both clients have one address."""
    slow, other = ({"authorization": f"Bearer {key}"} for key in keys) if keys else ({}, {"source": "127.0.0.2"})
    fields = "".join(f"{name}: {value}\r\n" for name, value in slow.items())
    head = START + f"{fields}Content-Length: 200000\r\n\r\n".encode()
    with running(max_body_bytes=200_000, api_keys=keys) as live, contextlib.ExitStack() as stack:
        held_now = live.state.bodies.held
        for _ in range(N_SLOW):
            stack.enter_context(connected(live)).sendall(head + b" " * BEGUN)
        held = N_SLOW * (BEGUN - SMALL_BYTES)
        eventually(lambda: held_now.total == held, "the bodies have arrived")
        refusal = padded(live, **slow)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "queue_full")
        assert f"the limit is {LIMIT};" in refusal.json()["error"]["message"]
        assert [padded(live, **other).status_code for _ in range(5)] == [200] * 5
        assert live.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=slow).status_code == 200
        eventually(lambda: held_now.total == held, "the slow ones are as before")
        stack.close()
        eventually(lambda: held_now.total == 0, "nothing is held")
