"""The engine of a real model is killed in the middle of answers, which are those of a run in which it lived.

The model is the first layers of the embedded one; test_embedded.py kills an engine of all layers.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bodies import BODIES, COMPLETIONS, STORY, UNSALTED, Said, said
from tests.e2e.server import LiveServer, serving
from tests.waiting import PATIENCE, eventually

SIGNALS = [signal.SIGKILL, signal.SIGSTOP]


@pytest.fixture(scope="module")
def server(short_model: Path) -> Iterator[LiveServer]:
    with serving(str(short_model), "--max-sequences", "32", "--quantize", "int8", paced=True) as started:
        yield started


def asked(name: str, run: str) -> tuple[str, dict[str, Any]]:
    """A request that finds nothing in the cache, where its API allows that: its usage is the same in every run."""
    path, body = BODIES[name]
    return path, body if path in UNSALTED else {**body, "cache_salt": f"{run} {name}"}


def whole(server: LiveServer, name: str, run: str) -> Said:
    path, body = asked(name, run)
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return said(path, [response.json()])


def streamed(server: LiveServer, name: str, run: str, flowing: threading.Barrier) -> Said:
    """A stream, which waits at the barrier after some of its events."""
    path, body = asked(name, run)
    with server.http.stream("POST", path, json=body | {"stream": True}) as response:
        if response.status_code != 200:
            flowing.abort()
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {"))
        events = [json.loads(line) for _, line in zip(range(6), lines, strict=False)]
        flowing.wait(PATIENCE)
        return said(path, [*events, *map(json.loads, lines)])


def run(server: LiveServer, name: str, number: signal.Signals | None) -> list[Said]:
    """All streams at once. With a signal, the engine gets it once all have begun."""
    flowing = threading.Barrier(len(BODIES) + 1)
    with ThreadPoolExecutor(len(BODIES)) as pool:
        reading = [pool.submit(streamed, server, body, name, flowing) for body in BODIES]
        if number is None:
            flowing.wait(PATIENCE)
        else:
            with server.slow():
                flowing.wait(PATIENCE)
                os.kill(server.engine_pid, number)
        return [future.result() for future in reading]


@pytest.fixture(scope="module")
def undisturbed(server: LiveServer) -> list[Said]:
    return run(server, "undisturbed", None)


@pytest.mark.parametrize("number", SIGNALS)
def test_streams_say_what_they_would_have_said(
    server: LiveServer, undisturbed: list[Said], number: signal.Signals
) -> None:
    """Texts, log probabilities, finish reasons and usage, to the bit."""
    restarts, continued = (server.metric(f"noria_{name}_total") for name in ("engine_restarts", "requests_continued"))
    disturbed = run(server, number.name, number)
    for name, found, alone in zip(BODIES, disturbed, undisturbed, strict=True):
        assert found == alone, name
    assert server.metric("noria_engine_restarts_total") == restarts + 1
    assert server.metric("noria_requests_continued_total") >= continued + len(BODIES) / 2
    assert server.http.get("/live").status_code == 200
    server.wait_idle()
    assert server.metric("noria_kv_pages", window="full", state="held") == 0
    assert "another engine goes on with " in server.log


def test_whole_answers_are_those_of_an_engine_that_lives(server: LiveServer) -> None:
    names = [*BODIES]
    alone = [whole(server, name, "alone") for name in names]
    with ThreadPoolExecutor(len(names)) as pool:
        with server.slow():
            answers = [pool.submit(whole, server, name, "again") for name in names]
            eventually(lambda: server.metric("noria_requests_running") >= len(names), "all run")
            os.kill(server.engine_pid, signal.SIGSEGV)
        for name, found, expected in zip(names, answers, alone, strict=True):
            assert found.result() == expected, name


def test_a_sampled_stream_without_a_seed_goes_on_as_the_model_would(server: LiveServer) -> None:
    """Nobody knows its seed. But the model gives each token, after those before it, the probability that it had."""
    body = STORY | {"temperature": 1, "logprobs": 0, "return_token_ids": True, "stream": True}
    with server.http.stream("POST", COMPLETIONS, json=body) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {"))
        with server.slow():
            events = [json.loads(next(lines)) for _ in range(6)]
            os.kill(server.engine_pid, signal.SIGKILL)
        choices = [event["choices"][0] for event in (*events, *map(json.loads, lines)) if event["choices"]]
    tokens = [token for choice in choices for token in choice["token_ids"]]
    values = [value for choice in choices for value in choice["logprobs"]["token_logprobs"]]
    prompt = server.http.post("/tokenize", json={"prompt": STORY["prompt"]}).json()["tokens"]
    scored = server.http.post(
        COMPLETIONS, json={"prompt": prompt + tokens, "max_tokens": 0, "echo": True, "logprobs": 0}
    ).json()
    assert len(tokens) > 12
    assert scored["choices"][0]["logprobs"]["token_logprobs"][-len(tokens) :] == values
