"""Refused and ignored fields are counted by their paths. Those that no body declares share a series."""

import logging
from typing import Any

import pytest

from service.logs import JsonFormatter
from service.observe.metrics import OTHER, Metrics
from tests.service.live import USER, Live, running
from tests.waiting import eventually

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def count(live: Live, path: str, field: str, outcome: str) -> float:
    labels = {"route": path, "field": field, "outcome": outcome}
    return live.state.metrics.registry.get_sample_value("noria_request_fields_total", labels) or 0


@pytest.mark.parametrize(
    ("path", "body", "field", "outcome"),
    [
        (CHAT, {"messages": [{**USER[0], "mood": 1}, {**USER[0], "mood": 1}]}, OTHER, "refused"),
        (CHAT, {"messages": USER, "temperature": 9}, "temperature", "refused"),
        (CHAT, {"messages": [{**USER[0], "role": "nobody"}]}, "messages.role", "refused"),
        (CHAT, {"messages": USER, "reasoning_effort": "low"}, "reasoning_effort", "ignored"),
        (RESPONSES, {"input": "a", "text": {"verbosity": "low"}}, "text.verbosity", "ignored"),
        (RESPONSES, {"input": "a", "text": {"verbosity": "loud"}}, "text.verbosity", "refused"),
        (CHAT, {"messages": USER, "é 1": 1}, OTHER, "refused"),
    ],
)
def test_a_request_counts_once_for_each_field(live: Live, path: str, body: Any, field: str, outcome: str) -> None:
    before = count(live, path, field, outcome)
    live.post(path, body)
    eventually(lambda: count(live, path, field, outcome) == before + 1, "it is counted once")


def test_clients_make_no_series() -> None:
    metrics = Metrics()
    metrics.fields = frozenset(("text.verbosity", "messages.role"))
    for n in range(1000):
        metrics.observe_fields(CHAT, [f"x{n}", f"messages[{n}].y{n}"], "refused")
    metrics.observe_fields(CHAT, ["text.verbosity", "messages[3].role", "messages[4].role", "z"], "refused")
    lines = [line for line in metrics.render().decode().splitlines() if line.startswith("noria_request_fields_total{")]
    assert {line.partition('field="')[2] for line in lines} == {
        f'text.verbosity",outcome="refused",route="{CHAT}"}} 1.0',
        f'messages.role",outcome="refused",route="{CHAT}"}} 1.0',
        f'{OTHER}",outcome="refused",route="{CHAT}"}} 1001.0',
    }


def test_the_answer_and_the_log_name_what_the_metric_does_not(caplog: pytest.LogCaptureFixture) -> None:
    with running(lenient=True) as live:
        caplog.set_level(logging.INFO, logger="noria")
        path, body = "/v1/completions", {"prompt": "a", "max_tokens": 1}
        answer = live.post(path, {**body, "mood": 1, "weather": 2})
        live.post("/v1/messages", {"messages": [{**USER[0], "content": [{"type": "tone"}]}], **body})
        eventually(lambda: count(live, path, OTHER, "ignored") == 1, "it is counted")
        eventually(lambda: len([r for r in caplog.records if r.name == "noria.access"]) == 2, "two lines")
        lines = [JsonFormatter().format(record) for record in caplog.records]
    assert answer.headers["x-noria-ignored"] == "mood, weather"
    assert sum("mood, weather" in line for line in lines) == 1
    assert sum('"field": "messages[0].content[0]' in line for line in lines) == 1
