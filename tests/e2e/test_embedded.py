"""The embedded model through a real server and the openai client."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.server import MODEL, LiveServer, serving
from tests.waiting import PATIENCE, children, eventually

QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]
ANSWER = "The capital of Japan is Tokyo."
STORY = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 2000, "temperature": 0}
LONG = {**STORY, "ignore_eos": True}


@pytest.fixture
def server(embedded: LiveServer) -> LiveServer:
    return embedded


def test_chat_answers(server: LiveServer) -> None:
    answer = server.openai.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_streams_the_same(server: LiveServer) -> None:
    stream = server.openai.chat.completions.create(  # type: ignore[call-overload]
        model=MODEL, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert len(chunks) > 5
    assert chunks[-1].usage.completion_tokens == 8


def test_completions_stream_and_whole_agree(server: LiveServer) -> None:
    ask = {"model": MODEL, "prompt": "The three primary colours are", "max_tokens": 24, "temperature": 0}
    whole = server.openai.completions.create(**ask)  # type: ignore[call-overload]
    parts = server.openai.completions.create(**ask, stream=True)  # type: ignore[call-overload]
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert whole.usage.completion_tokens == 24


def test_a_seed_reproduces_whatever_else_runs(server: LiveServer) -> None:
    ask = {"model": MODEL, "prompt": "My favourite animal", "max_tokens": 12, "seed": 5, "n": 3, "temperature": 0.9}

    def texts() -> list[str]:
        choices = server.openai.completions.create(**ask).choices  # type: ignore[call-overload]
        return [choice.text for choice in sorted(choices, key=lambda choice: choice.index)]

    alone = texts()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda _: texts(), range(4)))
    assert len(set(alone)) == 3
    assert all(found == alone for found in together)


def test_thirty_two_streams_answer_as_alone(server: LiveServer) -> None:
    words = ["the", "wheel", "turns", "and", "each", "bucket", "fills", "with", "water", "then", "empties"]

    def ask(number: int) -> str:
        prompt = " ".join(words[(number + n) % len(words)] for n in range(3 + 2 * number))
        chunks = server.openai.completions.create(
            model=MODEL, prompt=prompt, max_tokens=2 + number % 5, temperature=0, stream=True
        )
        return "".join(chunk.choices[0].text for chunk in chunks)

    with ThreadPoolExecutor(32) as pool:  # together first, so that no page is in the cache yet
        together = list(pool.map(ask, range(32)))
    alone = [ask(number) for number in range(32)]
    assert together == alone
    assert all(alone)
    server.wait_idle()
    assert server.metric("noria_kv_pages", window="full", state="held") == 0


def test_a_client_that_goes_away_frees_its_pages(server: LiveServer) -> None:
    before = server.metric("noria_generated_tokens_total")
    with server.slow():
        with server.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()  # the connection closes when this is destroyed
            next(lines)
            eventually(lambda: server.metric("noria_requests_running") == 1, "the metric shows the request")
        server.wait_idle()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=0.5)
        server.wait_idle()
    assert server.metric("noria_generated_tokens_total") - before < LONG["max_tokens"]
    assert server.metric("noria_kv_pages", window="full", state="held") == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_dies_or_hangs_is_replaced_under_six_streams(server: LiveServer, number: signal.Signals) -> None:
    flowing = threading.Barrier(7)

    def stream(_: int) -> str:
        chunks = server.openai.completions.create(**STORY, stream=True, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
        iterator = iter(chunks)
        next(iterator)
        flowing.wait(PATIENCE)
        with pytest.raises(openai.APIError) as caught:
            for _chunk in iterator:
                pass
        return str(caught.value)

    restarts = server.metric("noria_engine_restarts_total")
    with server.slow(), ThreadPoolExecutor(6) as pool:
        answers = pool.map(stream, range(6))
        flowing.wait(PATIENCE)
        os.kill(server.engine_pid, number)
        assert all("the engine failed" in answer for answer in answers)
    assert server.http.get("/live").status_code == 200
    server.wait_ready()
    assert server.metric("noria_engine_restarts_total") == restarts + 1
    answer = server.openai.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == ANSWER


def test_plain_requests_survive_the_death_of_the_engine_and_the_loss_of_the_cache(tmp_path: Path) -> None:
    """The next engine unpacks the model again, and gives the answers that were given alone."""
    prompts = ["Once upon a time", "My favourite animal is"]
    bodies = [
        {**LONG, "prompt": prompt, "max_tokens": 120, "seed": 3, "temperature": temperature}
        for prompt in prompts
        for temperature in (0.0, 1.0)
    ]

    def text(body: dict[str, Any]) -> str:
        return server.http.post("/v1/completions", json=body).json()["choices"][0]["text"]

    with serving("--spare-engine", paced=True) as server, ThreadPoolExecutor(6) as pool:
        alone = list(pool.map(text, bodies))
        eventually(lambda: children(server.process.pid, "noria-spare"), "a spare engine")
        (spare,) = children(server.process.pid, "noria-spare")
        with server.slow():
            again = pool.map(text, bodies)
            eventually(lambda: server.metric("noria_requests_running") == len(bodies), "all run")
            os.kill(server.engine_pid, signal.SIGKILL)
        assert list(again) == alone
        assert server.engine_pid == spare
        assert server.metric("noria_engine_restarts_total") == 1
        assert server.metric("noria_requests_total", outcome="length") == 2 * len(bodies)


def test_sigterm_lets_running_requests_finish(short_model: Path) -> None:
    with serving(str(short_model), "--max-sequences", "4", paced=True) as server, ThreadPoolExecutor(1) as pool:
        ask = {**LONG, "model": short_model.stem, "max_tokens": 200}
        with server.slow():
            answer = pool.submit(lambda: server.http.post("/v1/completions", json=ask).json())
            eventually(lambda: server.metric("noria_requests_running") == 1, "it runs")
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: not server.ready(), "the server drains")
        assert answer.result()["usage"]["completion_tokens"] == 200
        assert server.process.wait(PATIENCE) == 0
