"""`/v1/requests/{id}`: what a key sees of its own requests, and how they are cancelled."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from service.hosting.admission import FinishRate
from tests.service.live import LONG, Live, begun, hurried, idle, remaining, running
from tests.waiting import PATIENCE, eventually


def facts(live: Live, request_id: str, status: int = 200, **headers: str) -> dict[str, Any]:
    response = live.http.get(f"/v1/requests/{request_id}", headers=headers)
    assert response.status_code == status, response.text
    return response.json()


def cancel(live: Live, request_id: str, **headers: str) -> httpx.Response:
    return live.http.delete(f"/v1/requests/{request_id}", headers=headers)


@contextmanager
def sent(live: Live, path: str, body: dict[str, Any], **headers: str) -> Iterator[Callable[[], httpx.Response]]:
    """A request that a thread sends; the function waits for its response."""
    responses: list[httpx.Response] = []
    url, all_headers = live.url + path, {**live.http.headers, **headers}
    thread = threading.Thread(
        target=lambda: responses.append(httpx.post(url, json=body, headers=all_headers, timeout=PATIENCE))
    )
    thread.start()

    def response() -> httpx.Response:
        thread.join(PATIENCE)
        return responses[0]

    yield response
    thread.join(PATIENCE)


def waits(live: Live, request_id: str) -> Callable[[], bool]:
    def waiting() -> bool:
        response = live.http.get(f"/v1/requests/{request_id}")
        return response.status_code == 200 and response.json()["place"] is not None

    return waiting


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A slow server for the tests of this file that need no other."""
    with running(model="slow") as server:
        yield server


def test_a_request_is_followed_from_the_queue_to_its_end() -> None:
    with running(model="slow", max_sequences=1) as live:
        for _ in range(2):
            live.complete(prompt="x" * 40, max_tokens=4)
        with begun(live, max_tokens=400), begun_later(live, "mine", max_tokens=5) as response:
            eventually(waits(live, "mine"), "it waits")
            found = facts(live, "mine")
            assert (found["state"], found["place"], found["reason"]) == ("waiting", 1, "sequences")
            assert (found["prompt_tokens"], found["generated_tokens"], found["cached_tokens"]) == (4, 0, None)
            assert found["start"]["seconds"] > 0
            assert (found["same_id"], found["model"]) == (1, "fake")
            assert cancel(live, "mine").json() == {"id": "mine", "object": "request.cancelled", "cancelled": 1}
            assert response().json()["choices"][0] == {
                "index": 0,
                "text": "",
                "logprobs": None,
                "finish_reason": "abort",
                "stop_reason": None,
            }
        eventually(lambda: facts(live, "mine")["state"] == "finished", "it has finished")
        assert facts(live, "mine")["outcome"] == "abort"
        assert live.metric("noria_requests_total", outcome="abort") >= 1


def begun_later(live: Live, request_id: str, **body: Any) -> Any:
    return sent(live, "/v1/completions", {**LONG, **body}, **{"x-request-id": request_id})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 3000}),
    ],
)
def test_apis_without_a_reason_for_it_answer_with_an_error(live: Live, path: str, body: dict[str, Any]) -> None:
    with sent(live, path, body, **{"x-request-id": "a"}) as response:
        eventually(lambda: cancel(live, "a").status_code == 200, "it is cancelled")
    assert response().status_code == 410
    assert "was cancelled" in response().json()["error"]["message"]
    eventually(idle(live), "the engine has dropped it")


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "ends"),
    [
        ("/v1/completions", {"prompt": "hi"}, [("abort", None), "[DONE]"]),
        ("/v1/chat/completions", CHAT, [("abort", None), "[DONE]"]),
        ("/v1/responses", {"input": "hi"}, [("error", "request_cancelled")]),
        ("/v1/messages", {**CHAT, "max_tokens": 3000}, [("error", "invalid_request_error")]),
    ],
)
def test_the_end_of_each_stream_says_that_it_was_cancelled(
    live: Live, path: str, body: dict[str, Any], ends: list[Any]
) -> None:
    """As the table in docs/api.md says."""

    def told(line: str) -> Any:
        if line == "[DONE]":
            return line
        event = json.loads(line)
        if "choices" in event:
            return event["choices"][0]["finish_reason"], event.get("error")
        return event["type"], event["code"] if "code" in event else event["error"]["type"]

    with live.http.stream("POST", path, json={**body, "stream": True}, headers={"x-request-id": "a"}) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert cancel_elsewhere(live, "a") == 1
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert [told(line) for line in data[-len(ends) :]] == ends


def cancel_elsewhere(live: Live, request_id: str) -> int:
    response = httpx.delete(f"{live.url}/v1/requests/{request_id}", headers=live.http.headers, timeout=PATIENCE)
    return json.loads(response.text)["cancelled"]


def test_a_key_sees_and_cancels_its_own_requests_only(tmp_path: Any) -> None:
    with running(model="slow", api_keys=("one", "two")) as live:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        live.http.headers.update(one)
        with begun(live) as lines:
            request_id = last_id(live)
            other = facts(live, request_id, 404, **two)["error"]
            assert other["code"] == "request_not_found"
            assert cancel(live, request_id, **two).status_code == 404
            found = facts(live, request_id, **one)
            assert [found["state"], *(choice["state"] for choice in found["choices"])] == ["decode", "decode"]
            assert live.http.get(f"/v1/requests/{request_id}", headers={"authorization": ""}).status_code == 401
            assert cancel(live, request_id, **one).status_code == 200
            assert json.loads(remaining(lines)[-2])["choices"][0]["finish_reason"] == "abort"


def last_id(live: Live) -> str:
    """The id of the only request in flight."""
    (request,) = live.state.requests
    return request.record.id


def test_requests_with_one_id_are_cancelled_together(live: Live) -> None:
    with begun_later(live, "same") as first, begun_later(live, "same") as second:
        eventually(lambda: facts_or_none(live, "same", "same_id") == 2, "both run")
        assert cancel(live, "same").json()["cancelled"] == 2
    reasons = [response().json()["choices"][0]["finish_reason"] for response in (first, second)]
    assert reasons == ["abort", "abort"]
    assert cancel(live, "same").status_code == 404


def facts_or_none(live: Live, request_id: str, name: str) -> object:
    response = live.http.get(f"/v1/requests/{request_id}")
    return response.json()[name] if response.is_success else None


def test_many_questions_are_one_look(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(live):
        looks = 0
        look = live.engine.look

        async def counted(ids: Any = ()) -> Any:
            nonlocal looks
            looks += 1
            return await look(ids)

        monkeypatch.setattr(live.engine, "look", counted)
        request_id = last_id(live)
        threads = [threading.Thread(target=facts, args=(live, request_id)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert 1 <= looks < 12


def test_the_estimate_is_the_place_divided_by_the_rate_of_finished_requests() -> None:
    """Two finished requests in 6 s: the third in the queue starts in 9 s."""
    with running(model="slow", max_sequences=1) as live, contextlib.ExitStack() as stack:
        stack.enter_context(begun(live))
        ids = ["a", "b", "c"]
        for request_id in ids:
            stack.enter_context(begun_later(live, request_id, max_tokens=1))
        eventually(lambda: live.metric("noria_requests_waiting") == 3, "all wait")
        now = 100.0
        rate = FinishRate(lambda: now)
        rate.count()
        rate.count()
        live.state.models.first.admission._rate = rate
        now += 6.0
        found = [facts(live, request_id) for request_id in ids]
        assert sorted((item["place"], item["start"]["seconds"]) for item in found) == [(1, 3.0), (2, 6.0), (3, 9.0)]
        for request_id in ids:
            cancel(live, request_id)


def test_what_has_ended_keeps_no_grammar(live: Live) -> None:
    body = {"prompt": "a", "max_tokens": 1, "guided_choice": ["unusual"]}
    assert live.http.post("/v1/completions", json=body, headers={"x-request-id": "shaped"}).status_code == 200
    assert facts(live, "shaped")["state"] == "finished"
    record = live.state.requests.ended("", "shaped")
    eventually(lambda: "unusual" not in repr(record), "its grammar is forgotten")


def test_a_request_without_an_engine_still_has_its_facts() -> None:
    with running(model="slow") as live, begun_later(live, "a", max_tokens=400) as response:
        eventually(lambda: facts_or_none(live, "a", "state") == "decode", "it runs")
        live.hosts[-1].kill()
        assert facts(live, "a")["id"] == "a"
        with hurried():
            assert response().status_code == 200
