"""Refused and ignored fields are counted by their paths, and clients cannot make series without end."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from service.observe.field_metrics import MAX_AGE_SECONDS, MAX_UNKNOWN, MAX_UNKNOWN_OF_SENDER, OTHER_FIELD, FieldMetrics
from tests.service.live import USER, Live
from tests.waiting import eventually

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


@pytest.mark.parametrize(
    ("path", "body", "field", "outcome"),
    [
        (CHAT, {"messages": [{**USER[0], "mood": 1}, {**USER[0], "mood": 1}]}, "messages.mood", "refused"),
        (CHAT, {"messages": USER, "temperature": 9}, "temperature", "refused"),
        (CHAT, {"messages": USER, "reasoning_effort": "low"}, "reasoning_effort", "ignored"),
        (RESPONSES, {"input": "a", "text": {"verbosity": "low"}}, "text.verbosity", "ignored"),
        (RESPONSES, {"input": "a", "text": {"verbosity": "loud"}}, "text.verbosity", "refused"),
        (CHAT, {"messages": USER, "é 1": 1}, "%C3%A9%201", "refused"),
    ],
)
def test_a_request_counts_once_for_each_field(live: Live, path: str, body: Any, field: str, outcome: str) -> None:
    labels = {"route": path, "field": field, "outcome": outcome}

    def count() -> float:
        return live.state.metrics.registry.get_sample_value("noria_request_fields_total", labels) or 0

    before = count()
    live.post(path, body)
    eventually(lambda: count() == before + 1, "it is counted once")


def test_series_are_bounded_and_real_names_stay_visible() -> None:
    registry = CollectorRegistry()
    fields = FieldMetrics(registry)
    fields.declared = frozenset(("text.verbosity",))

    def count(field: str) -> float | None:
        labels = {"route": CHAT, "field": field, "outcome": "refused"}
        return registry.get_sample_value("noria_request_fields_total", labels)

    for n in range(1000):
        fields.observe("hostile", CHAT, [f"x{n}"], "refused")
    assert count(OTHER_FIELD) == 1000 - MAX_UNKNOWN_OF_SENDER
    fields.observe("honest", CHAT, ["messages[3].pre%20fix"], "refused")
    assert count("messages.pre%20fix") == 1
    for n in range(1000):
        fields.observe(f"hostile{n}", CHAT, [f"y{n}"], "refused")
    fields.observe("honest", CHAT, ["text.verbosity", "text.verbosity"], "refused")
    assert count("text.verbosity") == 1
    series = [sample for family in registry.collect() for sample in family.samples if sample.name.endswith("_total")]
    assert len(series) == MAX_UNKNOWN + 2


def test_names_of_the_past_give_way() -> None:
    registry, now = CollectorRegistry(), [0.0]
    fields = FieldMetrics(registry, lambda: now[0])

    def labels() -> set[str]:
        return {sample.labels["field"] for family in registry.collect() for sample in family.samples}

    for n in range(MAX_UNKNOWN):
        fields.observe(f"sender{n % 4}", CHAT, [f"x{n}"], "refused")
        fields.observe(f"sender{n % 4}", RESPONSES, [f"x{n}"], "ignored")
    fields.observe("new", CHAT, ["mood"], "ignored")
    assert "mood" not in labels()
    now[0] = MAX_AGE_SECONDS
    fields.observe("sender0", CHAT, ["x0"], "refused")
    now[0] += 1
    fields.observe("new", CHAT, ["mood"], "ignored")
    assert labels() == {OTHER_FIELD, "x0", "mood"}
