"""The objectives of llm-d's router: what a request may have of them."""

import pytest

from model.errors import OptionError
from model.sampling_params import SamplingParams
from service.access.objective import BETWEEN, FAIRNESS, FIRST, NAME, Objective
from service.engine.messages import Submit
from service.settings import Settings
from tests.service.live import USER, running

NAMES = {"premium": -10, "batch": 50}
OURS = (1.0, 0.1)


def applied(headers: dict[str, str], *, least: int = 0, tenant: str = "", priority: int = 0) -> Submit:
    plain = Submit(1, [1], SamplingParams(), tenant=tenant, priority=priority)
    return Objective.of(headers, NAMES, least, OURS).applied(plain)


def test_nobody_gets_a_priority_that_the_key_may_not_send() -> None:
    assert applied({NAME: "premium"}, least=-20).priority == -10
    assert applied({NAME: "premium"}).priority == 0
    assert applied({NAME: "batch"}).priority == 50
    assert applied({NAME: "unknown"}).priority == 0
    assert applied({NAME: "batch"}, priority=7).priority == 7, "the body says it itself"


def test_a_share_divides_the_queue_where_no_key_does() -> None:
    assert applied({FAIRNESS: "team"}).tenant == "team"
    assert applied({FAIRNESS: "team"}, tenant="key").tenant == "key"


def test_only_a_key_of_high_priority_is_served_sooner_than_others() -> None:
    slow, fast = {FIRST: "5000", BETWEEN: "400"}, {FIRST: "200", BETWEEN: "20"}
    assert (applied(slow).first, applied(slow).between) == (5.0, 0.4)
    assert (applied(fast).first, applied(fast).between) == OURS
    assert (applied(fast, least=-1).first, applied(fast, least=-1).between) == (0.2, 0.02)
    assert (applied({}).first, applied({}).between) == (0.0, 0.0)


def test_wrong_values_are_named() -> None:
    with running(max_sequences=1, max_queue=1, model="slow") as live:
        for name, value in ((FIRST, "0"), (BETWEEN, "1.5"), (FIRST, "9" * 20), (FAIRNESS, "x" * 129)):
            refusal = live.post("/v1/chat/completions", {"messages": USER}, headers={name: value})
            assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, name)
        many = {"prompt": ["a"] * 4, "max_tokens": 300, "stream": True}
        with (
            live.http.stream("POST", "/v1/completions", json=many, headers={FIRST: "900"}) as one,
            live.http.stream("POST", "/v1/completions", json=many, headers={NAME: "none"}) as other,
        ):
            assert (one.status_code, other.status_code) == (200, 200)
            full = live.post("/v1/chat/completions", {"messages": USER})
        assert (full.status_code, full.headers["x-llm-d-request-dropped-reason"]) == (429, "rejected-saturated")
    for text in ("premium", "=1", "a=b", "a=1.5"):
        with pytest.raises(OptionError, match="--objective must be NAME=NUMBER"):
            Settings(objectives=(text,)).check()
