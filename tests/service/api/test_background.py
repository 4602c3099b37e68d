"""Responses in the background: they need no connection, and clients come back to them."""

import asyncio
import contextlib
import json
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from service.api.responses.creation import Creation
from service.state.tables import Tables
from tests.service.api.background import LONG, PATH, ended, events, killed, state
from tests.service.live import Live, answer, busy, hurried, idle, running
from tests.waiting import PATIENCE, eventually

PROMPT = "u:hi;a:"
TEXT = answer(PROMPT, 60)


@pytest.fixture
def slow() -> Iterator[Live]:
    with running(model="slow") as live:
        yield live


@contextlib.contextmanager
def package(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def test_it_is_queued_runs_and_is_complete(slow: Live) -> None:
    with package(slow) as client:
        made = client.responses.create(**{"model": "fake"} | LONG)
        assert (made.status, made.output, made.background, made.store) == ("queued", [], True, True)
        eventually(lambda: client.responses.retrieve(made.id).status == "in_progress", "it runs")
        assert client.responses.retrieve(made.id).output == []
        with hurried():
            eventually(lambda: client.responses.retrieve(made.id).status == "incomplete", "the end")
        done = client.responses.retrieve(made.id)
        assert (done.output_text, done.id) == (TEXT, made.id)
        assert done.usage is not None
        assert done.usage.output_tokens == 60
        after = client.responses.create(model="fake", input="x", previous_response_id=made.id, max_output_tokens=3)
        assert after.output_text == answer(f"{PROMPT}{TEXT};u:x;a:", 3)


def test_one_that_waits_is_queued(slow: Live) -> None:
    with running(model="slow", max_sequences=1) as live:
        first, second = (live.post(PATH, LONG).json()["id"] for _ in range(2))
        eventually(lambda: state(live, first)["status"] == "in_progress", "the first runs")
        assert state(live, second)["status"] == "queued"
        with hurried():
            assert text_of(ended(live, second)) == TEXT
        assert [event["type"] for event in events(live, second)][:3] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]


def test_events_are_replayed_and_followed(slow: Live) -> None:
    """Whoever reads from any event gets the rest, while it runs and after its end."""
    id = slow.post(PATH, LONG).json()["id"]
    eventually(lambda: state(slow, id)["status"] == "in_progress", "it runs")
    with slow.http.stream("GET", f"{PATH}/{id}?stream=true") as response:
        lines = response.iter_lines()
        first = [next(line for line in lines if line.startswith("data: ")) for _ in range(7)]
        with hurried():
            rest = [line for line in lines if line.startswith("data: ")]
    whole = [json.loads(line.removeprefix("data: ")) for line in (*first, *rest)]
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert "".join(event["delta"] for event in whole if event["type"].endswith("text.delta")) == TEXT
    assert whole[-1]["type"] == "response.incomplete"
    ended(slow, id)
    for after in (None, 0, 5, len(whole) - 2, len(whole) - 1, len(whole) + 5):
        assert events(slow, id, after) == (whole if after is None else whole[after + 1 :])


def test_the_package_resumes_a_stream(slow: Live) -> None:
    with package(slow) as client:
        got: list[Any] = []
        with client.responses.create(**{"model": "fake"} | LONG, stream=True) as stream:
            for event in stream:
                got.append(event)
                if event.sequence_number == 6:
                    break
        with client.responses.retrieve(got[0].response.id, stream=True, starting_after=6) as stream, hurried():
            got += stream
    assert [event.sequence_number for event in got] == list(range(len(got)))
    assert "".join(event.delta for event in got if event.type == "response.output_text.delta") == TEXT
    assert got[-1].response.output_text == TEXT


def test_the_helper_of_the_package_resumes_a_stream(slow: Live) -> None:
    with package(slow) as client:
        with client.responses.stream(model="fake", input="hi", background=True, max_output_tokens=60) as stream:
            for event in stream:
                if event.type == "response.created":
                    id = event.response.id
                if event.type == "response.output_text.delta":
                    break
        with client.responses.stream(response_id=id, starting_after=4) as stream, hurried():
            rest = list(stream)
    assert rest[0].sequence_number == 5
    assert rest[-1].type == "response.incomplete"


def test_a_client_that_leaves_ends_no_background_response_but_an_ordinary_one(slow: Live) -> None:
    ids = {}
    for background in (True, False):
        with slow.http.stream("POST", PATH, json=LONG | {"stream": True, "background": background}) as response:
            lines = response.iter_lines()
            line = next(line for line in lines if line.startswith("data: "))
            ids[background] = json.loads(line.removeprefix("data: "))["response"]["id"]
            next(line for line in lines if "output_text.delta" in line)
    eventually(lambda: slow.metric("noria_requests_total", outcome="abort") == 1, "the ordinary one ends")
    assert slow.http.get(f"{PATH}/{ids[False]}").status_code == 404
    assert state(slow, ids[True])["status"] == "in_progress"
    with hurried():
        assert text_of(ended(slow, ids[True])) == TEXT
    eventually(idle(slow), "nothing runs")


def test_it_is_cancelled(slow: Live) -> None:
    with package(slow) as client:
        made = client.responses.create(**{"model": "fake"} | LONG)
        eventually(lambda: client.responses.retrieve(made.id).status == "in_progress", "it runs")
        cancelled = client.responses.cancel(made.id)
        assert cancelled.status == "cancelled"
        eventually(idle(slow), "nothing runs")
        assert client.responses.cancel(made.id).status == client.responses.retrieve(made.id).status == "cancelled"
        assert events(slow, made.id)[-1]["response"]["status"] == "cancelled"
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model="fake", input="x", previous_response_id="resp_0")
        plain = client.responses.create(model="fake", input="x", max_output_tokens=2)
        with pytest.raises(openai.BadRequestError, match="background"):
            client.responses.cancel(plain.id)


def test_one_that_is_deleted_ends_and_stays_away(slow: Live) -> None:
    id = slow.post(PATH, LONG).json()["id"]
    eventually(busy(slow), "it runs")
    assert slow.http.delete(f"{PATH}/{id}").json() == {"id": id, "object": "response", "deleted": True}
    eventually(idle(slow), "nothing runs")
    assert slow.http.get(f"{PATH}/{id}").status_code == 404


def test_refusals_come_at_once(slow: Live) -> None:
    response = slow.post(PATH, LONG | {"input": "x" * 5000})
    assert response.status_code == 400
    assert "context" in response.json()["error"]["message"]
    assert slow.metric("noria_requests_total", outcome="refused") == 1


def test_it_goes_on_when_its_engine_dies(slow: Live) -> None:
    id = slow.post(PATH, LONG).json()["id"]
    eventually(lambda: len(slow.state.runs.found["", id].recording.frames) > 6, "it has written")
    slow.hosts[0].kill()
    with hurried():
        assert text_of(ended(slow, id)) == TEXT
        undisturbed = slow.post(PATH, LONG).json()["id"]
        ended(slow, undisturbed)
    assert slow.metric("noria_requests_continued_total") == 1
    deltas = [[event.get("delta") for event in events(slow, one)] for one in (id, undisturbed)]
    assert deltas[0] == deltas[1]


def test_the_death_of_the_engine_is_told_where_answers_do_not_outlive_it() -> None:
    with running(model="slow", on_engine_loss="error") as live:
        id = live.post(PATH, LONG | {"max_output_tokens": 2000}).json()["id"]
        eventually(lambda: len(live.state.runs.found["", id].recording.frames) > 6, "it has written")
        live.hosts[0].kill()
        failed = ended(live, id)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert events(live, id)[-1]["type"] == "response.failed"


def test_it_counts_once_as_a_request_and_its_key_pays(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": "a", "key": "k", "max_concurrent": 1}]}))
    key = {"authorization": "Bearer k"}
    with running(model="slow", api_key_file=path) as live:
        live.http.headers.update(key)
        id = live.post(PATH, LONG).json()["id"]
        refusal = live.post(PATH, {"input": "x"})
        assert refusal.json()["error"]["code"] == "rate_limit_exceeded"
        assert state(live, id)["status"] in ("queued", "in_progress")
        with hurried():
            ended(live, id)
        eventually(idle(live), "it has ended")
        assert live.metric("noria_requests_total", outcome="length") == 1
        assert live.metric("noria_key_requests_total", key="a", outcome="length") == 1
        assert live.metric("noria_generated_tokens_total") == 60
        assert live.post(PATH, {"input": "x", "max_output_tokens": 2}).status_code == 200


def test_one_key_neither_follows_nor_cancels_the_response_of_another() -> None:
    with running(model="slow", api_keys=("k", "l")) as live:
        mine, other = {"authorization": "Bearer k"}, {"authorization": "Bearer l"}
        id = live.post(PATH, LONG, headers=mine).json()["id"]
        for method, path in (
            ("GET", f"{PATH}/{id}"),
            ("GET", f"{PATH}/{id}?stream=true"),
            ("POST", f"{PATH}/{id}/cancel"),
            ("DELETE", f"{PATH}/{id}"),
        ):
            assert live.http.request(method, path, headers=other).status_code == 404
        with hurried():
            assert text_of(ended(live, id, headers=mine)) == TEXT


def test_a_drain_ends_it_and_says_so(tmp_path: Path) -> None:
    """The response that does not end in time is stored as failed."""
    place = {"responses_store": str(tmp_path / "responses.db")}
    with running(model="slow", drain_timeout=0.1, **place) as live:
        asked = LONG | {"max_output_tokens": 3000, "stream": True}
        with live.http.stream("POST", PATH, json=asked) as response:
            lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
            seen = [json.loads(next(lines)) for _ in range(7)]
            live.server.handle_exit(signal.SIGTERM, None)
            *_, last = lines
        assert (json.loads(last)["type"], json.loads(last)["code"]) == ("error", "shutting_down")
        id = seen[0]["response"]["id"]
    with running(**place) as live:
        found = state(live, id)
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")


def test_what_ran_when_the_server_ended_has_failed(tmp_path: Path) -> None:
    """A copy of the file, as a server that is killed leaves it."""
    path, copy = tmp_path / "responses.db", tmp_path / "copy.db"
    with running(model="slow", responses_store=str(path)) as live:
        id = live.post(PATH, LONG).json()["id"]
        killed(live, path, copy)
        live.post(f"{PATH}/{id}/cancel", {})
    with running(responses_store=str(copy)) as live:
        found = state(live, id)
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
        assert live.http.get(f"{PATH}/{id}?stream=true").json()["error"]["code"] == "events_not_stored"
        items = live.http.get(f"{PATH}/{id}/input_items").json()["data"]
        assert [item["content"][0]["text"] for item in items] == ["hi"]


def test_memory_of_events_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.app.RECORDED_BYTES", 2000)
    with running(model="slow") as live:
        id = live.post(PATH, LONG).json()["id"]
        with hurried():
            assert text_of(ended(live, id)) == TEXT
        refusal = live.http.get(f"{PATH}/{id}?stream=true")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "events_not_stored")
        assert live.state.runs.recordings.n_bytes == 0
        assert live.state.runs.found == {}


def test_an_end_that_the_disk_does_not_take_is_a_failure(slow: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is full, and later."""
    put = Tables.put

    def full(*args: Any, **options: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    id = slow.post(PATH, LONG).json()["id"]
    with monkeypatch.context() as patch:
        patch.setattr(Tables, "put", lambda tables, *args, **options: full())
        patch.setattr(Tables, "delete", full)
        with hurried():
            failed = ended(slow, id)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert slow.post(f"{PATH}/{id}/cancel", {}).json() == failed
    assert Tables.put is put
    assert state(slow, id) == failed
    assert slow.http.get(f"{PATH}/{id}?stream=true").json()["error"]["code"] == "events_not_stored"
    assert slow.http.delete(f"{PATH}/{id}").status_code == 200


def test_an_end_that_is_too_large_is_a_failure() -> None:
    with running(model="slow", responses_store_size=3000) as live, hurried():
        failed = ended(live, live.post(PATH, LONG).json()["id"])
        assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid_prompt")
        assert "no place" in failed["error"]["message"]


def test_what_runs_has_half_of_the_store() -> None:
    with running(model="slow", responses_store_size=10_000, api_keys=("k", "l")) as live:
        mine, other = {"authorization": "Bearer k"}, {"authorization": "Bearer l"}
        ids = []
        while (response := live.post(PATH, LONG, headers=mine)).status_code == 200:
            ids.append(response.json()["id"])
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (429, "store_full")
        assert "may hold 5000 bytes" in error["message"]
        assert 1 <= len(ids) < 5
        assert live.post("/v1/conversations", {}, headers=other).status_code == 200
        assert live.post(PATH, LONG, headers=other).status_code == 200


def test_a_client_that_leaves_before_it_has_the_id_ends_it(slow: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(creation: Creation) -> Any:
        await asyncio.get_running_loop().create_future()

    with monkeypatch.context() as patch:
        patch.setattr(Creation, "made", endless)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{slow.url}{PATH}", json=LONG, timeout=0.3)
        eventually(lambda: slow.state.runs.found == {}, "nobody finds it")
        eventually(idle(slow), "nothing runs")
    assert slow.metric("noria_requests_total", outcome="abort") == 1
    with hurried():
        assert text_of(ended(slow, slow.post(PATH, LONG).json()["id"])) == TEXT
