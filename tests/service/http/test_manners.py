"""The parts of answers besides the text: headers, timings, usage in every chunk, the fingerprint."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from model.checkpoint.generation_config import GenerationDefaults
from service.api.openai.models import facts
from service.generation.served import ServedModel, fingerprint
from tests.fakes import IntegerTokenizer, make_info
from tests.service.live import Live, answer, busy, hurried, running
from tests.waiting import eventually

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "twelve chars"


def test_timings_of_a_whole_answer(live: Live) -> None:
    reply = live.complete(prompt=PROMPT, max_tokens=20, n=2)
    timings = reply["timings"]
    assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"]) == (len(PROMPT), 0, 40)
    assert timings["prompt_ms"] > 0
    assert timings["predicted_per_second"] > 0
    again = live.complete(prompt="x" * 40, max_tokens=1)["timings"]
    assert again["prompt_n"] + again["cache_n"] == 40
    nothing_sampled = live.complete(prompt=PROMPT, max_tokens=0, echo=True)["timings"]
    assert (nothing_sampled["predicted_n"], nothing_sampled["predicted_ms"]) == (0, 0)


def test_the_wait_of_later_choices_is_no_time_of_the_first() -> None:
    """One sequence at a time, with 20 ms a step: the second waits until the first is complete."""
    with running(model="slow", max_sequences=1) as live:
        timings = live.complete(prompt=["one", "two"], max_tokens=5)["timings"]
    assert timings["prompt_ms"] >= 20
    assert timings["predicted_ms"] >= 160


def test_only_the_last_chunk_of_a_stream_has_timings(live: Live) -> None:
    for options in ({}, {"stream_options": {"include_usage": True}}):
        body = {"prompt": PROMPT, "max_tokens": 5, "n": 2, **options}
        chunks = live.events(COMPLETIONS, body)
        assert ["timings" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert chunks[-1]["timings"]["predicted_n"] == 10


def test_headers(live: Live) -> None:
    for body in ({}, {"stream": True}):
        response = live.post(COMPLETIONS, {"prompt": "hi", **body}, headers={"x-request-id": "mine"})
        assert response.headers["x-request-id"] == "mine"
        assert re.fullmatch(r"\d+\.\d", response.headers["x-queue-ms"])
    assert "x-queue-ms" not in live.http.get("/v1/models").headers


def test_the_fingerprint_is_that_of_the_server(live: Live) -> None:
    own = live.http.get("/version").json()["fingerprint"]
    assert re.fullmatch(r"noria-\S+-none-[0-9a-f]{8}", own)
    assert live.complete(prompt="hi")["system_fingerprint"] == own
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert {chunk["system_fingerprint"] for chunk in live.events(CHAT, body)} == {own}


def test_the_fingerprint_changes_with_what_answers_depend_on() -> None:
    info = make_info()
    other = make_info(max_model_len=64)
    trained = make_info()
    trained.description["weights"] = "another"
    assert fingerprint(info) == fingerprint(make_info())
    fast, faster = ({**info.description, "kernels_reason": f"amx is {gain} times as fast"} for gain in (2.5, 2.6))
    assert fingerprint(replace(info, description=fast)) == fingerprint(replace(info, description=faster))
    narrow = make_info(pools=((64, 64),))
    assert len(set(map(fingerprint, (info, trained, other, narrow)))) == 4


def test_a_models_card_says_how_it_is_run() -> None:
    info = make_info(pools=((8, 64),))
    info.description["quantize"] = "int8"
    served = ServedModel(("fake",), IntegerTokenizer(), None, GenerationDefaults(), 1, info)
    found = facts(served, "fake", (), "base")
    assert (found["window"], found["quantization"], found["parent"], found["adapters"]) == (
        8,
        "int8",
        None,
        [],
    )
    mixed = make_info(pools=((8, 64), (None, 64)))
    served = ServedModel(("fake",), IntegerTokenizer(), None, GenerationDefaults(), 1, mixed)
    assert facts(served, "fake", (), "base")["window"] == [8, None]


def test_progress_of_a_long_prompt() -> None:
    """A step computes 16 of 64 prompt tokens. The second time 48 are in the cache. A slow reader misses reports."""
    with running(max_step_tokens=16, max_sequences=4) as live:
        live.complete(prompt="w", max_tokens=2)  # the first step of an engine has 15 tokens: its pace is not known
        for path, prompt in (
            (COMPLETIONS, {"prompt": "p" * 64}),
            (CHAT, {"messages": [{"role": "user", "content": "q" * 59}]}),
        ):
            for cached in (0, 48):
                body = {**prompt, "max_tokens": 3, "return_progress": True}
                chunks = live.events(path, body)
                reports = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
                processed = [report["processed"] for report in reports]
                assert processed == sorted({*processed} & {*range(cached + 16, 65, 16)})
                assert processed[-1] == 64
                assert {(report["total"], report["cache"]) for report in reports} == {(64, cached)}
                times = [report["time_ms"] for report in reports]
                assert times == sorted(times)
                has_text = [
                    bool(chunk["choices"][0].get("text") or (chunk["choices"][0].get("delta") or {}).get("content"))
                    for chunk in chunks
                ]
                assert not any(has_text[: has_text.index(True)])
                assert sum(has_text) <= 3
        quiet = live.events(COMPLETIONS, {"prompt": "r" * 64, "max_tokens": 3})
        assert not any("prompt_progress" in chunk for chunk in quiet)


def test_progress_needs_a_stream(live: Live) -> None:
    response = live.post(COMPLETIONS, {"prompt": "hi", "return_progress": True})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "return_progress")


@pytest.fixture(scope="module")
def silent() -> Iterator[Live]:
    """A step of 8 tokens takes 20 ms, and comments come after 50 ms without an event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.http.sse.KEEP_ALIVE_SECONDS", 0.05)
        patch.setattr("service.api.anthropic.shape.PING_SECONDS", 0.05)
        with running(model="slow", max_step_tokens=4, max_sequences=4) as live:
            yield live


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "p" * 400}),
        (CHAT, {"messages": [{"role": "user", "content": "s" * 400}]}),
    ],
)
def test_a_silent_stream_says_that_it_lives(silent: Live, path: str, body: dict[str, Any]) -> None:
    """Comments are no part of the events."""
    with silent.http.stream("POST", path, json={**body, "max_tokens": 3, "stream": True}) as response:
        lines = filter(None, response.iter_lines())
        assert [next(lines), next(lines)] == [": keep-alive"] * 2
        with hurried():
            rest = [line for line in lines if line != ": keep-alive"]
    assert all(line.startswith(("data: ", "event: ")) for line in rest)
    assert sum(line.startswith("data: ") for line in rest) > 1
    assert response.headers["x-request-id"]


def test_a_silent_message_has_begun_and_pings(silent: Live) -> None:
    """It begins once, also where an engine dies before the first token; its end has the true usage."""
    body = {"messages": [{"role": "user", "content": "t" * 400}], "max_tokens": 3, "stream": True}
    n_hosts = len(silent.hosts)
    with silent.http.stream("POST", "/v1/messages", json=body) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        events = (json.loads(line.removeprefix("data: ")) for line in lines)
        start = next(events)
        assert [next(events)["type"] for _ in range(3)] == ["ping"] * 3
        silent.hosts[-1].kill()
        eventually(lambda: len(silent.hosts) > n_hosts and busy(silent)(), "it runs on the next engine")
        with hurried():
            rest = [event for event in events if event["type"] != "ping"]
    assert start["type"] == "message_start"
    usage = start["message"]["usage"]
    assert {name: count for name, count in usage.items() if count} == {"input_tokens": len("u:;a:") + 400}
    assert [event["type"] for event in (rest[0], rest[-1])] == ["content_block_start", "message_stop"]
    usage = rest[-2]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len("u:;a:") + 400
    text = "".join(event["delta"]["text"] for event in rest if event["type"] == "content_block_delta")
    assert text == answer(f"u:{'t' * 400};a:", 3)


def test_a_client_library_reads_over_the_signs_of_life(silent: Live) -> None:
    with openai.OpenAI(base_url=f"{silent.url}/v1", api_key="none") as client:
        stream = client.completions.create(model="fake", prompt="z" * 160, max_tokens=3, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == answer("z" * 160, 3)


def test_a_client_that_leaves_in_the_silence_is_forgotten(silent: Live) -> None:
    with silent.http.stream("POST", COMPLETIONS, json={"prompt": "q" * 400, "stream": True}) as response:
        next(response.iter_lines())
    eventually(lambda: not silent.state.models.first.admission.in_flight, "its place is free")
    eventually(lambda: silent.metric("noria_requests_total", outcome="abort") == 1, "it is counted as gone")


def test_a_failure_after_a_sign_of_life_is_an_event(silent: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first death of the engine does not show, the second is such a failure."""
    monkeypatch.setattr("service.engine.submitted.MAX_LOST", 1)
    with silent.http.stream("POST", COMPLETIONS, json={"prompt": "r" * 400, "stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines) == ": keep-alive"
        for n_hosts in (len(silent.hosts), len(silent.hosts) + 1):
            eventually(lambda n=n_hosts: len(silent.hosts) == n and busy(silent)(), "it runs on the next engine")
            silent.hosts[-1].kill()
        rest = [line for line in lines if line and line != ": keep-alive"]
    assert len(rest) == 1
    assert "engine_died" in rest[0]
