"""A replica of a real model is lost in the middle of streams, which the other one goes on with as if nothing had been.

The client is that of docs/clients.md. The model is the first layers of the embedded one.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bodies import BODIES as OF_ENGINES
from tests.e2e.bodies import TALK, TOOL, N, Said, said
from tests.e2e.link import Link, linked
from tests.e2e.server import LiveServer, serving
from tests.service.resuming_client import client
from tests.waiting import PATIENCE

NOTE, ANY = {"name": "note"}, {"type": "any"}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    **OF_ENGINES,
    "ollama": ("/api/chat", {"messages": TALK["messages"], "options": {"num_predict": N, "temperature": 0}}),
    "generate": ("/api/generate", {"prompt": "Once", "options": {"num_predict": N, "seed": 7}}),
    "call in a message": (
        "/v1/messages",
        TALK
        | {
            "temperature": 0,
            "tools": [{"name": "note", "input_schema": TOOL["parameters"]}],
            "tool_choice": {"type": "any"},
        },
    ),
}
CHANGING = {"created_at", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}
CHANGING |= {"cached_tokens", "input_tokens", "cache_read_input_tokens"}
N_BEFORE = 6


@pytest.fixture(scope="module")
def replicas(short_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, LiveServer]]:
    key = tmp_path_factory.mktemp("key") / "resume.key"
    key.write_text("a secret of replicas")
    flags = (str(short_model), "--served-model-name", "short", "--max-sequences", "32", "--quantize", "int8")
    own = ("--resume-key-file", str(key))
    with serving(*flags, *own, paced=True) as one, serving(*flags, *own, paced=True) as other:
        yield one, other


def streamed(url: str, name: str, flowing: threading.Barrier) -> Said:
    """What a stream says. It waits at the barrier after some of its events."""
    path, body = BODIES[name]
    model = {} if "model" in body else {"model": "short"}
    events, numbers = [], count(1)
    for event in client().events(url + path, {**model, **body, "stream": True}):
        events.append(event)
        if next(numbers) == N_BEFORE:
            flowing.wait(PATIENCE)
    return steady(path, events)


def steady(path: str, events: list[dict[str, Any]]) -> Said:
    """What was said, but for clocks and caches."""
    return {key: value for key, value in said(path, events).items() if not set(key) & CHANGING}


def run(link: Link, server: LiveServer, fault: Callable[[], None]) -> dict[str, Said]:
    """All streams at once. The fault comes when all have begun, at a slow server."""
    flowing = threading.Barrier(len(BODIES) + 1)
    with ThreadPoolExecutor(len(BODIES)) as pool:
        with server.slow():
            reading = {name: pool.submit(streamed, link.url, name, flowing) for name in BODIES}
            flowing.wait(PATIENCE)
            fault()
        return {name: future.result() for name, future in reading.items()}


def test_streams_outlive_their_replica(replicas: tuple[LiveServer, LiveServer]) -> None:
    """It is cut off, stands still or is killed: texts, calls, log probabilities and usage are the same, to the bit."""
    one, other = replicas
    ports = [int(server.url.rpartition(":")[2]) for server in replicas]
    with linked(ports[0]) as link:
        undisturbed = run(link, one, lambda: None)

        def stand_still() -> None:
            link.turn(ports[1])
            os.kill(one.process.pid, signal.SIGSTOP)

        def cut() -> None:
            link.turn(ports[1])
            link.cut()

        def kill() -> None:
            link.turn(ports[0])
            other.kill()

        for fault, server in ((cut, one), (stand_still, one), (kill, other)):
            link.turn(int(server.url.rpartition(":")[2]))
            disturbed = run(link, server, fault)
            os.kill(one.process.pid, signal.SIGCONT)
            for name in BODIES:
                assert disturbed[name] == undisturbed[name], (fault.__name__, name)


@pytest.mark.parametrize("name", ["schema", "tool", "regex", "penalties", "stop string", "greedy, without a seed"])
def test_the_field_resume_goes_on_in_a_grammar(replicas: tuple[LiveServer, LiveServer], name: str) -> None:
    """The answer after given tokens is that of a run that computes all; tokens beside the grammar end it alone."""
    server, (path, body) = replicas[0], BODIES[name]
    body = {key: value for key, value in body.items() if "logprobs" not in key} | {"return_token_ids": True, "seed": 7}
    whole = server.http.post(path, json=body).json()
    tokens = [choice["token_ids"][: len(choice["token_ids"]) // 2] for choice in whole["choices"]]
    resume = {"tokens": tokens, "seed": 7, "fingerprint": whole["system_fingerprint"]}
    again = server.http.post(path, json=body | {"resume": resume}).json()
    assert steady(path, [again]) == steady(path, [whole])
    if name in ("schema", "tool", "regex"):
        wrong = {**resume, "tokens": [[100, 200, 300]] * len(tokens)}
        refused = server.http.post(path, json=body | {"resume": wrong})
        assert refused.status_code == 400, refused.text
        assert server.http.post(path, json=body | {"max_tokens": 8}).status_code == 200
