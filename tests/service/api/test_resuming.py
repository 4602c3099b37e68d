"""Streams of chats, completions and messages that a client resumes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.service.live import USER, Live, answer, hurried, idle, refused, running
from tests.waiting import PATIENCE, eventually

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
FIM, RESPONSES = "/v1/fim/completions", "/v1/responses"
WANTED = {"x-noria-resume": "1"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "max_tokens": 40, "stream": True},
    COMPLETIONS: {"prompt": "u:hi;a:", "max_tokens": 40, "stream": True},
    MESSAGES: {"messages": USER, "max_tokens": 40, "stream": True},
    FIM: {"prompt": "u:hi;a:", "max_tokens": 40, "stream": True},
}
TEXT = answer("u:hi;a:", 40)


@pytest.fixture(scope="module")
def slow() -> Iterator[Live]:
    with running(model="slow", resume_seconds=30) as live:
        yield live


def frames(lines: Iterator[str], n: int | None = None) -> list[tuple[str, str]]:
    """The ids and the data of events, up to so many."""
    found: list[tuple[str, str]] = []
    id = ""
    for line in lines:
        if line.startswith("id: "):
            id = line.removeprefix("id: ")
        elif line.startswith("data: "):
            found.append((id, line.removeprefix("data: ")))
            if len(found) == n:
                break
    return found


def n_sent(id: str) -> int:
    """The number of events up to that of an id."""
    return sum(map(int, id.split(".")[1].split("-")))


def text_of(path: str, events: list[tuple[str, str]]) -> str:
    datas = [json.loads(data) for _, data in events if data != "[DONE]"]
    if path == MESSAGES:
        return "".join(data["delta"]["text"] for data in datas if data["type"] == "content_block_delta")
    choices = [choice for data in datas for choice in data["choices"]]
    if path in (CHAT, FIM):
        return "".join(choice["delta"].get("content") or "" for choice in choices)
    return "".join(choice["text"] for choice in choices)


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_goes_on_where_it_broke(slow: Live, path: str) -> None:
    body = BODIES[path] | {"max_tokens": 40}
    with slow.http.stream("POST", path, json=body, headers=WANTED) as response:
        begun = frames(response.iter_lines(), 5)
    id = response.headers["x-request-id"]
    assert begun[-1][0].startswith(f"{id}:")
    last = {"last-event-id": begun[-1][0]}
    with slow.http.stream("POST", path, json=body, headers=last) as response, hurried():
        rest = frames(response.iter_lines())
    numbers = [n_sent(id) for id, data in (*begun, *rest) if data != "[DONE]"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert text_of(path, [*begun, *rest]) == TEXT
    assert slow.http.get(f"/v1/requests/{id}").json()["outcome"] == "length"
    # after its end too, as often as the client likes, from any event, and from the first
    for last_id, events in ((begun[-1][0], rest), (f"{id}:", [*begun, *rest])):
        with slow.http.stream("POST", path, json=body, headers={"last-event-id": last_id}) as response:
            again = frames(response.iter_lines())
        assert [data for _, data in again] == [data for _, data in events]


def test_a_stream_goes_on_where_it_broke_in_another_engine() -> None:
    """Neither the connection nor the engine is there any more."""
    with running(model="slow") as live:
        with live.http.stream("POST", CHAT, json=BODIES[CHAT], headers=WANTED) as response:
            begun = frames(response.iter_lines(), 5)
        live.hosts[0].kill()
        last = {"last-event-id": begun[-1][0]}
        with live.http.stream("POST", CHAT, json=BODIES[CHAT], headers=last) as response, hurried():
            rest = frames(response.iter_lines())
        assert live.metric("noria_requests_continued_total") == 1
    assert text_of(CHAT, [*begun, *rest]) == TEXT


def test_two_readers_get_the_same(slow: Live) -> None:
    with slow.http.stream("POST", CHAT, json=BODIES[CHAT], headers=WANTED) as first:
        lines = first.iter_lines()
        begun = frames(lines, 3)
        last = {"last-event-id": begun[-1][0]}
        with slow.http.stream("POST", CHAT, json=BODIES[CHAT], headers=last) as second, hurried():
            assert frames(second.iter_lines()) == frames(lines)


def test_a_stream_without_the_header_ends_with_its_client(slow: Live) -> None:
    eventually(idle(slow), "nothing runs")
    for headers in ({}, {"x-noria-resume": "0"}):
        with slow.http.stream("POST", CHAT, json=BODIES[CHAT] | {"max_tokens": 2000}, headers=headers) as response:
            assert all(not line.startswith("id:") for line in [next(response.iter_lines())])
        eventually(idle(slow), "it ends")
        last = {"last-event-id": f"{response.headers['x-request-id']}:0"}
        refusal = slow.http.post(CHAT, json=BODIES[CHAT], headers=last)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (404, "stream_not_found")


def test_a_stream_that_nobody_reads_goes_on_only_for_a_while() -> None:
    with running(model="slow", resume_seconds=0.2) as live:
        with live.http.stream("POST", CHAT, json=BODIES[CHAT] | {"max_tokens": 3000}, headers=WANTED) as response:
            frames(response.iter_lines(), 2)
        eventually(idle(live), "it ends")
        last = {"last-event-id": f"{response.headers['x-request-id']}:"}
        assert live.http.post(CHAT, json=BODIES[CHAT], headers=last).status_code == 404
        eventually(lambda: live.state.runs.recordings.n_bytes == 0, "nothing is kept")
        assert live.metric("noria_requests_total", outcome="abort") == 1
        live.post(CHAT, BODIES[CHAT] | {"max_tokens": 3}, headers=WANTED)
        eventually(lambda: live.state.runs.found == {}, "a complete one is forgotten too")


def test_the_package_reads_a_stream_with_ids_through_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes an empty line after a comment for an event once it has an id."""
    monkeypatch.setattr("service.http.sse.KEEP_ALIVE_SECONDS", 0.01)
    with running(model="slow") as live:
        client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        stream = client.chat.completions.create(
            model="fake",
            messages=USER,
            max_tokens=5,
            stream=True,
            extra_headers=WANTED,  # type: ignore[arg-type]
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == TEXT[:5]
        client.close()


def test_refusals(slow: Live) -> None:
    plain = BODIES[CHAT] | {"stream": False}
    for headers, body, param in (
        ({"x-noria-resume": "yes"}, BODIES[CHAT], "x-noria-resume"),
        (WANTED, plain, "x-noria-resume"),
        ({"last-event-id": "a:1"}, plain, "last-event-id"),
        ({"last-event-id": "a"}, BODIES[CHAT], "last-event-id"),
    ):
        response = slow.http.post(CHAT, json=body, headers=headers)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    later = {"model": "fake", "input": "x", "stream": True, "background": True}
    response = slow.http.post(RESPONSES, json=later, headers=WANTED)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-noria-resume")
    assert "starting_after" in response.json()["error"]["message"]
    response = slow.http.post(CHAT, json=BODIES[CHAT] | {"max_tokens": 10**6}, headers=WANTED)
    assert response.status_code == 400
    assert refused(slow, CHAT, BODIES[CHAT] | {"max_tokens": -1})["param"] == "max_tokens"


def test_one_key_does_not_resume_the_stream_of_another() -> None:
    with running(model="slow", api_keys=("k", "l")) as live:
        mine, other = {"authorization": "Bearer k"}, {"authorization": "Bearer l"}
        with live.http.stream("POST", CHAT, json=BODIES[CHAT], headers=WANTED | mine) as response:
            begun = frames(response.iter_lines(), 2)
        last = {"last-event-id": begun[-1][0]}
        assert live.http.post(CHAT, json=BODIES[CHAT], headers=last | other).status_code == 404
        with live.http.stream("POST", CHAT, json=BODIES[CHAT], headers=last | mine) as response, hurried():
            assert text_of(CHAT, [*begun, *frames(response.iter_lines())]) == TEXT


def test_an_id_names_an_event_that_was_sent(slow: Live) -> None:
    """One with another place has another seal; the id of another endpoint's stream is unknown."""
    named = WANTED | {"x-request-id": "story"}
    with hurried(), slow.http.stream("POST", CHAT, json=BODIES[CHAT], headers=named) as response:
        events = frames(response.iter_lines())
    last = events[-2][0]
    for forged in (re.sub(r"\.\d+-", ".1-", last), "story:7", last + "=", "ständig:é".encode()):
        response = slow.http.post(CHAT, json=BODIES[CHAT], headers={"last-event-id": forged})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "stream_not_found")
    with slow.http.stream("POST", CHAT, json=BODIES[CHAT], headers={"last-event-id": last}) as rest:
        assert [data for _, data in frames(rest.iter_lines())] == ["[DONE]"]
    for path in (MESSAGES, COMPLETIONS, FIM):
        response = slow.http.post(path, json=BODIES[path], headers={"last-event-id": "story:"})
        assert response.status_code == 404, path


def test_a_stream_and_its_readers_are_one_request_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": "a", "key": "k", "max_concurrent": 1}]}))
    with running(model="slow", api_key_file=path) as live:
        live.http.headers["authorization"] = "Bearer k"
        long = BODIES[CHAT] | {"max_tokens": 500}
        with live.http.stream("POST", CHAT, json=long, headers=WANTED | {"x-request-id": "story"}) as first:
            begun = frames(first.iter_lines(), 3)
        last = {"last-event-id": begun[-1][0]}
        with live.http.stream("POST", CHAT, json=long, headers=last) as second:
            lines = second.iter_lines()
            begun += frames(lines, 2)
            with live.http.stream("POST", CHAT, json=long, headers=last) as third:
                assert third.status_code == 200
            for other, headers in ((CHAT, {}), (CHAT, WANTED), (RESPONSES, {})):
                body = {"input": "x"} if other == RESPONSES else BODIES[CHAT]
                refusal = live.http.post(other, json=body, headers=headers)
                assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            with hurried():
                begun += frames(lines)
        assert text_of(CHAT, begun) == answer("u:hi;a:", 500)
        eventually(idle(live), "it has ended")
        assert live.http.post(CHAT, json=BODIES[CHAT] | {"max_tokens": 2}).status_code == 200


def test_a_stream_counts_once_while_its_client_reads(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": "a", "key": "k", "max_concurrent": 2}]}))
    with running(model="slow", api_key_file=path) as live:
        live.http.headers["authorization"] = "Bearer k"
        with live.http.stream("POST", CHAT, json=BODIES[CHAT] | {"max_tokens": 2000}, headers=WANTED) as stream:
            frames(stream.iter_lines(), 1)
            assert live.http.post(CHAT, json=BODIES[CHAT] | {"max_tokens": 2}).status_code == 200
