"""Streams of a model that is not loaded yet: signs of life, then the answer, or the error as an event."""

import json
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.service.hosting.serving import LATE, serving
from tests.service.live import USER, answer, hurried, refused
from tests.waiting import PATIENCE

SECONDS = 0.05
CHAT = {"messages": USER, "max_tokens": 4, "stream": True}
STREAMS = [
    ("/v1/completions", {"prompt": "hi", "max_tokens": 4, "stream": True}, "data: [DONE]"),
    ("/v1/chat/completions", CHAT, "data: [DONE]"),
    ("/v1/messages", CHAT, 'data: {"type":"message_stop"'),
]
RESPONSE = ("/v1/responses", {"input": "hi", "max_output_tokens": 4, "stream": True})


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.http.sse.KEEP_ALIVE_SECONDS", SECONDS)


@pytest.mark.parametrize("resume", ["0", "1"])
@pytest.mark.parametrize(("path", "body", "last"), STREAMS)
def test_a_stream_begins_while_its_model_loads(
    path: str, body: dict[str, object], last: str, resume: str, tmp_path: Path
) -> None:
    with serving(tmp_path, {"a": {}, "b": {"source": "large", **LATE}}) as live:
        with (
            httpx.Client(base_url=live.url, timeout=PATIENCE) as http,
            http.stream("POST", path, json={**body, "model": "b"}, headers={"x-noria-resume": resume}) as response,
        ):
            assert response.status_code == 200
            lines = response.iter_lines()
            assert next(lines) == ": keep-alive"
            assert live.http.get("/v1/models/b").json()["state"] == "loading"
            with hurried():
                rest = [line for line in lines if line and line != ": keep-alive"]
        prompt = "hi" if path == "/v1/completions" else "u:hi;a:"
        assert answer(prompt, 4)[0] in "".join(rest)
        assert rest[-1].startswith(last)


@pytest.mark.parametrize(("path", "body"), [*(row[:2] for row in STREAMS), RESPONSE])
def test_a_load_that_fails_after_the_status_is_an_event(path: str, body: dict[str, object], tmp_path: Path) -> None:
    entries = {"a": {}, "b": {"source": "large", "load_timeout": 1, **LATE}}
    with ExitStack() as ending, serving(tmp_path, entries) as live:
        response = live.post(path, {**body, "model": "b"})
        ending.enter_context(hurried())  # the thread of the load would finish that first
        assert response.status_code == 200
        assert "b was not loaded within 1 s" in response.text or "could not be loaded" in response.text
        assert "[DONE]" not in response.text
        *_, data = (line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: "))
        event = json.loads(data)
        if path == "/v1/responses":
            assert (event["type"], event["sequence_number"], "message" in event) == ("error", 0, True)
            assert f"event: error\ndata: {data}" in response.text
        else:
            assert event["error"]["message"]


def test_a_refusal_before_the_status_is_a_plain_error_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.sse.KEEP_ALIVE_SECONDS", 60.0)
    path, body, _ = STREAMS[0]
    with hurried(), serving(tmp_path, {"a": {}, "b": {"source": "large", **LATE}}) as live:
        error = refused(live, path, {**body, "model": "b", "max_tokens": 10**6})
        assert error["param"] == "max_tokens"
        labels = {"route": path, "field": "max_tokens", "outcome": "refused"}
        assert live.state.metrics.registry.get_sample_value("noria_request_fields_total", labels) == 1
        assert live.metric("noria_requests_total", model="b", outcome="refused") == 1
