"""Receipts in the answers of every API: what they say is checked with hashlib and OpenSSL."""

import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from service.receipts.keys import read_key
from tests.service.live import USER, Live, answer, hurried, refused, running
from tests.service.receipts.signing import openssl_accepts, signing
from tests.waiting import eventually

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 5},
    "/v1/completions": {"prompt": "u:hi;a:", "max_tokens": 5},
    "/v1/fim/completions": {"prompt": "u:hi;a:", "max_tokens": 5},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
    "/v1/responses": {"input": "hi", "max_output_tokens": 5},
}
TEXT = answer("u:hi;a:", 5)


def hashed(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def of_tokens(text: str) -> str:
    """The hash of the tokens of the fake model, each a byte."""
    return hashed(b"".join(struct.pack("<I", token) for token in text.encode()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("receipts")


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    with signing(folder) as server:
        yield server


def receipts_of(live: Live, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The receipts of an answer, whole or in the last event of its stream."""
    body = {**BODIES[path], "receipt": True, **fields}
    if body.get("stream"):
        *others, last = live.events(path, body)
        assert not any("receipts" in event for event in others)
        return last["receipts"]
    response = live.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()["receipts"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_every_api_signs_what_it_answers(live: Live, folder: Path, path: str, stream: bool, tmp_path: Path) -> None:
    (receipt,) = receipts_of(live, path, stream=stream)
    assert openssl_accepts(receipt, tmp_path)
    assert receipt["key"] == read_key(folder / "key.pem").public
    assert receipt["weights"] == hashed(b"weights")
    assert receipt["tokens"] == of_tokens(TEXT)
    assert receipt["text"] == hashed(TEXT.encode())
    known = {"endpoint": path, "n_tokens": 5, "max_tokens": 5, "finish": "length", "model": "fake", "choice": 0}
    assert {name: receipt[name] for name in known} == known
    assert len(receipt["marks"]) == 20
    assert "content" not in receipt


def test_a_stream_ends_with_usage_and_receipt_in_one_chunk(live: Live) -> None:
    body = {**BODIES["/v1/chat/completions"], "receipt": True, "stream_options": {"include_usage": True}}
    last = live.events("/v1/chat/completions", body)[-1]
    assert (last["choices"], last["usage"]["completion_tokens"], len(last["receipts"])) == ([], 5, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_of_each_prompt_has_one(live: Live, stream: bool) -> None:
    prompts = ["a wheel", "a bucket"]
    found = receipts_of(live, "/v1/completions", prompt=prompts, n=2, stream=stream)
    expected = [of_tokens(answer(prompt, 5, choice)) for prompt in prompts for choice in (0, 1)]
    assert [one["tokens"] for one in found] == expected
    assert [one["choice"] for one in found] == [0, 1, 0, 1]
    assert len({one["request"] for one in found}) == 4
    assert len({one["prompt"] for one in found}) == 2


def test_best_of_gives_the_receipt_of_the_choice_that_it_returns(live: Live) -> None:
    body = {"prompt": "a wheel", "max_tokens": 5, "best_of": 3, "n": 1, "receipt": True}
    whole = live.complete(**body)
    (receipt,) = whole["receipts"]
    assert receipt["text"] == hashed(whole["choices"][0]["text"].encode())
    assert receipt["tokens"] == of_tokens(answer("a wheel", 5, receipt["choice"]))


@pytest.mark.parametrize("path", BODIES)
def test_an_unseeded_request_has_the_seed_that_was_drawn(live: Live, path: str) -> None:
    (first,), (second,) = (receipts_of(live, path, temperature=0.7) for _ in range(2))
    assert first["seed"] != second["seed"]
    assert first["request"] != second["request"]
    (again,) = receipts_of(live, path, temperature=0.7, seed=int(first["seed"]))
    same = ("seed", "request", "prompt", "tokens", "text", "marks")
    assert {name: again[name] for name in same} == {name: first[name] for name in same}


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.6},
        {"seed": 4},
        {"max_tokens": 6},
        {"stop": ["zz"]},
        {"logit_bias": {"65": 1}},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "user", "content": "ho"}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_a_request_is_in_its_hash(live: Live, change: dict[str, Any]) -> None:
    fields = {"seed": 3, "temperature": 0.7}
    (one,), (other,) = (receipts_of(live, "/v1/chat/completions", **fields, **more) for more in ({}, {}))
    assert one["request"] == other["request"]
    (changed,) = receipts_of(live, "/v1/chat/completions", **{**fields, **change})
    assert changed["request"] != one["request"]
    assert (changed["prompt"] != one["prompt"]) == ("messages" in change)


def test_what_changes_no_token_is_not_in_the_hash(live: Live) -> None:
    path, fields = "/v1/chat/completions", {"seed": 3}
    (one,) = receipts_of(live, path, **fields)
    others = ({"logprobs": True}, {"stream": True, "return_progress": True}, {"user": "me"}, {"cache_salt": "s"})
    for more in others:
        (other,) = receipts_of(live, path, **fields, **more)
        assert other["request"] == one["request"], more


def test_marks_belong_to_the_prompt(live: Live) -> None:
    """Who has a receipt alone cannot try tokens one after the other."""
    (one,) = receipts_of(live, "/v1/completions", prompt="a", logit_bias={"65": 100})
    (other,) = receipts_of(live, "/v1/completions", prompt="b", logit_bias={"65": 100})
    assert one["marks"][:4] != other["marks"][:4]


def test_full_receipts_hold_what_is_hashed(live: Live, tmp_path: Path) -> None:
    path = "/v1/messages"
    (receipt,) = receipts_of(live, path, receipt="full")
    content = receipt["content"]
    assert openssl_accepts(receipt, tmp_path)
    assert (content["text"], bytes(content["token_ids"]).decode()) == (TEXT, TEXT)
    assert '"receipt":"full"' in content["body"]


@pytest.mark.parametrize("how", [{}, {"stream": True}, {"background": True}, {"background": True, "stream": True}])
def test_a_stored_response_has_its_receipts(live: Live, how: dict[str, bool], tmp_path: Path) -> None:
    """They are those of the answer. A response in the background has no other place for them."""
    path, body = "/v1/responses", {**BODIES["/v1/responses"], "receipt": "full", **how}
    last = live.events(path, body)[-1] if "stream" in how else live.post(path, body).json()
    id = last.get("response", last)["id"]
    eventually(lambda: live.http.get(f"{path}/{id}").json()["status"] == "incomplete", "the end")
    (receipt,) = live.http.get(f"{path}/{id}").json()["receipts"]
    assert openssl_accepts(receipt, tmp_path)
    assert receipt["tokens"] == of_tokens(TEXT)
    assert '"receipt":"full"' in receipt["content"]["body"]
    assert last.get("receipts", [receipt]) == [receipt]


def test_a_stream_that_resumes_ends_with_its_receipt(live: Live) -> None:
    path, body = "/v1/chat/completions", {**BODIES["/v1/chat/completions"], "receipt": True, "stream": True}
    first = live.post(path, body, headers={"x-noria-resume": "1", "x-request-id": "signed"})
    again = live.post(path, body, headers={"last-event-id": "signed:"})
    last = [response.text.split("data: ")[-2] for response in (first, again)]
    assert last[0] == last[1]
    assert json.loads(last[0])["receipts"][0]["tokens"] == of_tokens(TEXT)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_two_engines_has_the_receipt_of_one(folder: Path, stream: bool) -> None:
    body = {"prompt": "long", "max_tokens": 60, "temperature": 0.7, "seed": 3, "n": 2}
    same = ("request", "prompt", "tokens", "text", "marks", "n_tokens", "finish")
    with signing(folder, model="slow") as slow, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(receipts_of, slow, "/v1/completions", **body, stream=stream)
        eventually(lambda: slow.metric("noria_generated_tokens_total") > 6, "it has begun")
        slow.hosts[0].kill()
        with hurried():
            found = asked.result()
            undisturbed = receipts_of(slow, "/v1/completions", **body)
        assert slow.metric("noria_requests_continued_total") == 2
    assert [{name: one[name] for name in same} for one in found] == [
        {name: one[name] for name in same} for one in undisturbed
    ]


def test_receipts_for_all_and_none(folder: Path) -> None:
    with signing(folder, receipts=True) as live:
        assert len(live.complete(prompt="x", max_tokens=2)["receipts"]) == 1
        assert "receipts" not in live.complete(prompt="x", max_tokens=2, receipt=False)
        assert "receipts" in live.events("/v1/completions", {"prompt": "x", "max_tokens": 2})[-1]
        assert "receipts" not in live.post("/v1/embeddings", {"input": "x"}).json()


def test_without_a_key_it_is_refused() -> None:
    with running() as live:
        error = refused(live, "/v1/completions", {"prompt": "x", "receipt": True})
        assert (error["param"], error["code"]) == ("receipt", "no_receipt_key")
        assert "--receipt-key FILE" in error["message"]
        assert "extra receipts" in error["message"]
        wrong = refused(live, "/v1/completions", {"prompt": "x", "receipt": "yes"})
        assert wrong["message"].startswith('receipt must be true, false or "full"')
        assert "receipts" not in live.complete(prompt="x", max_tokens=2, receipt=False)


def test_files_that_have_changed_since_they_were_loaded_get_no_receipt(tmp_path: Path) -> None:
    """The weights in memory are not those on the disk."""
    with signing(tmp_path) as live:
        (tmp_path / "model.gguf").write_bytes(b"other weights")
        response = live.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "receipt": True})
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "no_receipt"
        assert "changed since they were loaded" in response.json()["error"]["message"]
        assert "receipts" not in live.complete(prompt="x", max_tokens=2)


def test_an_adapter_is_named_by_the_hash_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "blue").mkdir()
    (tmp_path / "blue" / "lora.safetensors").write_bytes(b"A and B")
    with signing(tmp_path, lora=(f"blue={tmp_path / 'blue'}",)) as live:
        (own,) = receipts_of(live, "/v1/completions", seed=1)
        (other,) = receipts_of(live, "/v1/completions", seed=1, model="blue")
    assert other["adapter"] == {"name": "blue", "files": hashed(b"A and B")}
    assert (other["model"], own["adapter"]) == ("fake", None)
    assert other["request"] != own["request"]


def test_an_answer_that_time_cuts_has_a_receipt(tmp_path: Path) -> None:
    with signing(tmp_path, model="slow") as live:
        (receipt,) = live.complete(prompt="long", max_tokens=3000, timeout=0.5, receipt=True)["receipts"]
    assert receipt["finish"] == "timeout"
    assert 0 < receipt["n_tokens"] < 3000
    assert receipt["tokens"] == of_tokens(answer("long", receipt["n_tokens"]))
