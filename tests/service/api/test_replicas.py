"""Streams that another replica goes on with, after any event, by an id or by the field `resume`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gathered import gathered
from tests.service.live import USER, Live, answer, hurried, idle, refused, running
from tests.service.resuming_client import client
from tests.waiting import eventually

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
RESUME = {"x-noria-resume": "1"}
CONTINUED = {"temperature": 0.9, "max_tokens": 12}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": USER, **CONTINUED, "stream_options": {"include_usage": True}}),
    "choices": (CHAT, {"messages": USER, **CONTINUED, "n": 2, "logprobs": True, "return_progress": True}),
    "completions": ("/v1/completions", {"prompt": ["u", "v"], **CONTINUED, "n": 2, "echo": True, "logprobs": 1}),
    "fim": ("/v1/fim/completions", {"prompt": "u:hi;a:", **CONTINUED, "return_token_ids": True}),
    "messages": (MESSAGES, {"messages": USER, **CONTINUED}),
    "responses": (RESPONSES, {"model": "fake", "input": "hi", "max_output_tokens": 12}),
    "ollama": ("/api/chat", {"model": "fake", "messages": USER, "options": {"num_predict": 12}}),
    "generate": ("/api/generate", {"model": "fake", "prompt": "hi", "options": {"num_predict": 12}}),
    "stop": (CHAT, {"messages": USER, "max_tokens": 40, "stop": answer("u:hi;a:", 12)[6:9]}),
}


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Live]]:
    with pair(tmp_path_factory.mktemp("key")) as both:
        yield both


@contextmanager
def pair(folder: Path, **options: Any) -> Iterator[tuple[Live, Live]]:
    key = folder / "resume.key"
    key.write_text("a secret of replicas\n")
    same: dict[str, Any] = {"resume_key_file": key, "deterministic": True, **options}
    with running(**same) as one, running(**same) as other:
        yield one, other


def events(live: Live, path: str, body: dict[str, Any], **headers: str) -> list[tuple[str, dict[str, Any]]]:
    """The ids and the data of a stream's events, without those of progress."""
    found = [*client()._once(live.url + path, json.dumps({"stream": True, **body}), RESUME | headers | JSON)]
    return [(id, data) for id, data in found if "prompt_progress" not in data]


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("name", BODIES)
def test_another_replica_goes_on_after_any_event(replicas: tuple[Live, Live], name: str) -> None:
    path, body = BODIES[name]
    one, other = replicas
    undisturbed = events(one, path, body)
    assert all(id for id, _ in undisturbed)
    for at in range(0, len(undisturbed), 3):
        rest = events(other, path, body, **{"last-event-id": undisturbed[at][0]})
        whole = [data for _, data in (*undisturbed[: at + 1], *rest)]
        assert said(whole) == said([data for _, data in undisturbed])
        assert identities(whole) == identities([data for _, data in undisturbed])
        if rest:
            last = events(one, path, body, **{"last-event-id": rest[0][0]})
            assert said([data for _, data in last]) == said([data for _, data in rest[1:]]), "and back"


def said(found: list[dict[str, Any]]) -> dict[Any, Any]:
    """What events say, but for what a cache and the clock have added."""
    return {key: value for key, value in gathered(found).items() if not set(map(str, key)) & CHANGING}


CHANGING = {"cached_tokens", "cache_read_input_tokens", "input_tokens", "created_at", "prompt_eval_duration"}
CHANGING |= {"total_duration", "load_duration", "eval_duration"}


def identities(found: list[dict[str, Any]]) -> set[Any]:
    """The ids and times that the events of an answer repeat."""
    outer = [data.get("response", data) for data in found]
    return {(name, data[name]) for data in outer for name in ("id", "created", "item_id") if name in data}


def plain(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "timings"}


def test_calls_keep_their_ids(tmp_path: Path) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    body = {"messages": [{"role": "user", "content": text}], "tools": tools, "max_tokens": 100}
    with pair(tmp_path, model="recite", served_model_name=("fake",), max_model_len=2048) as (one, other):
        undisturbed = events(one, CHAT, body)
        begun = next(at for at, (_, data) in enumerate(undisturbed) if "tool_calls" in json.dumps(data))
        rest = events(other, CHAT, body, **{"last-event-id": undisturbed[begun - 1][0]})
        assert [plain(data) for _, data in rest] == [plain(data) for _, data in undisturbed[begun:]]


def test_what_is_refused_by_name(replicas: tuple[Live, Live], tmp_path: Path) -> None:
    one, other = replicas
    path, body = BODIES["chat"]
    body = {**body, "stream": True}
    last = {"last-event-id": events(one, path, body)[2][0]}

    def refusal(live: Live, **more: Any) -> dict[str, Any]:
        response = live.post(path, body | more, headers=last)
        return response.json()["error"] | {"status": response.status_code}

    assert "another request" in refusal(other, max_tokens=13)["message"]
    key = tmp_path / "key"
    key.write_text("a secret of replicas")
    with running(resume_key_file=key, max_model_len=100) as shorter:
        error = refusal(shorter)
        assert (error["code"], error["param"]) == ("other_fingerprint", "last-event-id")
        ours, theirs = (live.http.get("/version").json()["fingerprint"] for live in (one, shorter))
        assert error["message"].count(ours) == error["message"].count(theirs) == 1
    with running() as stranger:
        assert refusal(stranger)["status"] == 404
    many = {"prompt": ["a"] * 129, "max_tokens": 1, "stream": True}
    assert one.post("/v1/completions", many, headers=RESUME).json()["error"]["param"] == "n"


def test_an_answer_that_is_computed_again_is_in_flight(tmp_path: Path) -> None:
    path, body = BODIES["chat"]
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "a", "key": "k", "max_concurrent": 1}]}))
    with pair(tmp_path, model="slow", api_key_file=keys) as (one, other):
        mine = {"authorization": "Bearer k"}
        with hurried():
            id, _ = events(one, path, body, **mine)[3]
        last = {"last-event-id": id, **mine}
        with other.http.stream("POST", path, json=body | {"stream": True, "max_tokens": 500}, headers=mine) as response:
            lines = response.iter_lines()  # without it the response would be closed
            next(lines)
            refusal = other.post(path, body | {"stream": True}, headers=last)
            assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        other.http.headers.update(mine)
        eventually(idle(other), "it has ended")
        with hurried():  # the client asks again until the place of the other stream is free
            assert len([*client().events(other.url + path, {"stream": True, **body}, **last)]) > 3


def test_the_field_resume_goes_on_after_tokens(replicas: tuple[Live, Live]) -> None:
    one, other = replicas
    body: dict[str, Any] = {"messages": USER, "max_tokens": 20, "seed": 5, "return_token_ids": True, "n": 2}
    whole = one.post(CHAT, body).json()
    tokens = [choice["token_ids"][: 7 + choice["index"]] for choice in whole["choices"]]
    resume = {"tokens": tokens, "seed": 5, "fingerprint": whole["system_fingerprint"]}
    body |= {"resume": resume}
    del body["seed"]
    again = other.post(CHAT, body).json()
    assert said([again]) == said([whole]), "an answer that is no stream is whole"
    rest = other.events(CHAT, body)
    for choice in whole["choices"]:
        said_now = "".join(
            event["choices"][0]["delta"].get("content") or ""
            for event in rest
            if event["choices"][0]["index"] == choice["index"]
        )
        assert said_now == choice["message"]["content"][len(tokens[choice["index"]]) :]
    for path, more in ((MESSAGES, {"messages": USER}), ("/api/chat", {"model": "fake", "messages": USER})):
        alone = {**more, "max_tokens": 20} if path == MESSAGES else {**more, "options": {"num_predict": 20}}
        answered = other.post(path, {**alone, "stream": False, "resume": {**resume, "tokens": tokens[0]}})
        assert whole["choices"][0]["message"]["content"] in answered.text


@pytest.mark.parametrize(
    ("resume", "more", "param"),
    [
        ({"fingerprint": "noria-1"}, {}, "resume.fingerprint"),
        ({"tokens": [[1], [2]]}, {}, "resume.tokens"),
        ({"tokens": [400]}, {}, "resume.tokens"),
        ({"tokens": [40] * 8}, {}, "resume.tokens"),
        ({"tokens": [40, 0]}, {}, "resume.tokens"),
        ({}, {"logprobs": True}, "resume"),
        ({}, {"receipt": "full"}, "receipt"),
    ],
)
def test_a_wrong_resume_names_its_field(
    replicas: tuple[Live, Live], resume: dict[str, Any], more: dict[str, Any], param: str
) -> None:
    live = replicas[0]
    fingerprint = live.http.get("/version").json()["fingerprint"]
    body = {"messages": USER, "max_tokens": 8, "resume": {"tokens": [40], "seed": 1, "fingerprint": fingerprint}}
    body["resume"] |= resume
    assert refused(live, CHAT, body | more)["param"] == param
