"""Expensive bodies of legal size: few errors, no work on the event loop, no tokenizing of too long texts."""

import json
import signal
import threading
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from service.api.openai.schema import ChatBody, CompletionBody
from service.api.tokens.schema import DetokenizeBody, TokenizeBody
from service.schema.conversation import Content
from service.schema.prompts import Prompts
from service.schema.sampling import Stops
from tests.fakes import IntegerTokenizer
from tests.service.live import Live, begun, ready, running
from tests.waiting import eventually

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


def test_of_many_unknown_fields_some_are_named(live: Live) -> None:
    response = live.post("/v1/completions", {"prompt": "a", **{f"f{n}": n for n in range(MANY)}})
    message = response.json()["error"]["message"]
    assert response.status_code == 400
    assert "'f0', 'f1'" in message
    assert len(message) < 300


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
    """A tokenizer that counts its texts and records the threads of its work."""

    def __init__(self) -> None:
        self.encoded = 0
        self.threads: set[str] = set()

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        self.encoded += 1
        return super().encode(text, add_bos=add_bos, parse_control=parse_control)

    def name(self, token: int) -> str:
        self.threads.add(threading.current_thread().name)
        return super().name(token)


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


def test_token_strings_are_made_on_the_tokenizing_thread() -> None:
    tokenizer = Watched()
    with running(tokenizer=tokenizer) as live:
        reply = live.post("/tokenize", {"prompt": "hi<end>", "return_token_strs": True}).json()
    assert reply["token_strs"] == ["h", "i", "<end>"]
    assert len(tokenizer.threads) == 1
    assert tokenizer.threads.pop().startswith("noria-tokenize")


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
