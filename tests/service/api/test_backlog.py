"""The bounds of the queue by prompt tokens and by choices, and the time after which a refused client may come back."""

import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.access.keys import Share
from service.hosting.admission import RATE_SAMPLES, FinishRate
from tests.service.live import answer, begun, busy, idle, refused, running, sent
from tests.waiting import eventually

COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize(
    ("limits", "large", "n_choices", "words"),
    [
        ({"max_queue_choices": 4}, {"prompt": "a", "n": 8}, 8, ["8 choices", "limit is 4"]),
        ({"max_queue_choices": 4}, {"prompt": ["a", "b"], "n": 3}, 6, ["6 choices", "limit is 4"]),
        ({"max_queue_tokens": 10}, {"prompt": "as long as this", "n": 5}, 5, ["15 prompt tokens", "limit is 10"]),
    ],
    ids=str,
)
def test_a_large_request_is_taken_alone_and_the_next_is_refused(
    limits: dict[str, int], large: dict[str, Any], n_choices: int, words: list[str]
) -> None:
    sent: dict[str, Any] = {}
    with running(model="slow", max_sequences=1, **limits) as live:
        thread = threading.Thread(target=lambda: sent.update(live.complete(**large, max_tokens=2)))
        with begun(live):
            thread.start()
            eventually(busy(live, 2), "the large request waits")
            waiting = live.metric("noria_requests_waiting")
            response = live.post(COMPLETIONS, {"prompt": "next", "max_tokens": 1})
            assert response.status_code == 429
            assert 1 <= int(response.headers["retry-after"]) <= 60
            error = response.json()["error"]
            assert error["code"] == "queue_full"
            assert all(word in error["message"] for word in words), error
            assert live.post("/tokenize", {"prompt": "next"}).status_code == 200
            assert live.metric("noria_requests_waiting") == waiting  # the engine heard of neither
        thread.join()
        assert len(sent["choices"]) == n_choices
        assert live.complete(prompt="next", max_tokens=2)["choices"][0]["text"] == answer("next", 2)


def test_what_runs_does_not_count_and_what_is_aborted_leaves() -> None:
    with running(model="slow", max_sequences=2, max_queue_choices=1, max_queue_tokens=1) as live:
        with begun(live), begun(live):
            for _ in range(2):
                with sent(live.address):
                    eventually(lambda: live.metric("noria_requests_waiting") == 1, "a third waits: two run")
                    assert "4 prompt tokens" in refused(live, COMPLETIONS, {"prompt": "x"}, 429)["message"]
                    assert live.metric("noria_prompt_tokens_waiting") == 4
                eventually(lambda: live.metric("noria_requests_waiting") == 0, "the engine forgets it")
                eventually(lambda: live.metric("noria_prompt_tokens_waiting") == 0, "it no longer counts")
        eventually(idle(live), "all are gone")
        assert live.complete(prompt="next", max_tokens=2)["choices"][0]["text"] == answer("next", 2)


def test_many_prompts_are_submitted_while_others_are_served() -> None:
    """The engine hears of each prompt once, and each answer is that of its prompt."""
    with running() as live:
        prompts = [f"prompt {n}" for n in range(300)]
        choices = live.complete(prompt=prompts, n=2, max_tokens=2)["choices"]
        assert [choice["text"] for choice in choices] == [answer(prompt, 2, n) for prompt in prompts for n in range(2)]


def test_the_rate_is_that_of_the_last_minute_or_since_the_server_was_idle() -> None:
    now = 0.0
    rate = FinishRate(lambda: now)
    now = 1000.0
    rate.begin()
    now = 1010.0
    assert rate.seconds(3) == 30  # none has finished: at most one in 10 s
    for now in (1012.0, 1014.0, 1016.0, 1018.0, 1020.0):  # noqa: B007
        rate.count()
    assert rate.seconds(3) == 3 * 20 / 5
    now = 1075.0
    assert rate.seconds(3) == 3 * 60 / 3  # two are older than a minute
    rate.begin()
    now = 1076.0
    assert rate.seconds(3) == 3
    for _ in range(2 * RATE_SAMPLES):
        now += 0.001
        rate.count()
    assert rate.seconds(1000) == pytest.approx(1, rel=0.01)


def test_a_tenant_below_its_part_may_add_to_a_full_queue() -> None:
    share, used = Share(), {}
    for tenant in "abc":
        while not share.is_full(tenant, 60):
            share.add(tenant, 1)
            used[tenant] = used.get(tenant, 0) + 1
    assert used == {"a": 60, "b": 30, "c": 20}
    assert [share.is_full(tenant, 60) for tenant in "abcd"] == [True, True, True, False]
    share.add("b", -30)
    assert [share.is_full(tenant, 60) for tenant in "abc"] == [True, False, False]
    share.add("a", -60)
    assert [share.is_full(tenant, 60) for tenant in "abc"] == [False, False, False]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 60)), max_size=60))
def test_others_leave_a_tenant_its_part_whatever_the_sizes_are(asked: list[tuple[str, int]]) -> None:
    share, used = Share(), Counter[str]()
    for tenant, size in asked:
        if not share.is_full(tenant, 60, size):
            share.add(tenant, size)
            used[tenant] += size
        assert share.total <= 60 * sum(1 / n for n in range(1, len(used) + 1))
    assert not share.is_full("new", 60, 60 // (len(used) + 1))


def test_a_key_that_fills_the_queue_keeps_no_other_out() -> None:
    limits = {"max_queue": 1, "max_queue_choices": 1, "max_queue_tokens": 1}
    with running(model="slow", max_sequences=1, api_keys=("flood", "other"), **limits) as live:
        live.http.headers["authorization"] = "Bearer flood"
        done: list[int] = []

        def ask(key: str) -> None:
            headers = {"authorization": f"Bearer {key}"}
            done.append(live.post(COMPLETIONS, {"prompt": "hi", "max_tokens": 1}, headers=headers).status_code)

        with begun(live):
            threads = [threading.Thread(target=ask, args=[key]) for key in ("flood", "other")]
            for number, thread in enumerate(threads, start=2):
                thread.start()
                eventually(busy(live, number), "it waits")
            for key in ("flood", "other"):
                ask(key)
            assert done == [429, 429]
        for thread in threads:
            thread.join()
        assert done == [429, 429, 200, 200]
