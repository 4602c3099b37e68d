"""Two replicas behind Ray's proxy: what a client sees of them, of a lost engine and of a lost replica."""

import os
import signal
from itertools import islice

import httpx

from tests.e2e.server import MODEL
from tests.ray.cluster import Cluster, engines
from tests.ray.conftest import LONG, LONGEST, PROMPTS
from tests.waiting import PATIENCE, ended, eventually, strike

GENERATED = "noria_generated_tokens_total"


def n_aborted(cluster: Cluster) -> float:
    return cluster.metric("noria_requests_total", outcome="abort")


def test_a_stream_through_the_proxy_is_the_answer_of_one_server(two: Cluster, alone: dict[str, str]) -> None:
    """Its chunks come while it is computed, and it has one id."""
    order = {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPTS[0]}],
        "max_tokens": LONG,
        "ignore_eos": True,
    }
    url = f"{two.url}/v1/chat/completions"
    with two.slow(), httpx.stream("POST", url, json={**order, "stream": True}, timeout=PATIENCE) as response:
        lines = filter(None, response.iter_lines())  # the connection closes when this is destroyed
        assert all(line.startswith("data: {") for line in islice(lines, 10))
        assert two.metric("noria_requests_running") == 1
        assert len(response.headers.get_list("x-request-id")) == 1
    streams = [two.stream(prompt, LONG).ended() for prompt in PROMPTS]
    assert [stream.text for stream in streams] == [alone[prompt] for prompt in PROMPTS]


def test_a_client_that_leaves_ends_its_sequence_in_the_engine(two: Cluster) -> None:
    aborted, generated = n_aborted(two), two.metric(GENERATED)
    order = {"model": MODEL, "prompt": "1 2 3", "max_tokens": LONGEST, "ignore_eos": True, "stream": True}
    with two.slow():
        with httpx.stream("POST", f"{two.url}/v1/completions", json=order, timeout=PATIENCE) as response:
            next(response.iter_lines())
        eventually(lambda: n_aborted(two) == aborted + 1, "the request counts as aborted")
        eventually(lambda: two.metric("noria_requests_running") == 0, "the engine has dropped the sequence")
    assert two.metric(GENERATED) - generated < 200


def test_ray_exports_the_metrics_of_each_replica(two: Cluster) -> None:
    for name, labels in (
        ("noria_requests_total", {"outcome": "abort"}),
        (GENERATED, {}),
        ("noria_request_seconds_bucket", {"le": "+Inf"}),
    ):
        assert two.metric(name, **labels) > 0
        eventually(lambda: two.exported(name, **labels) == two.metric(name, **labels), f"Ray exports {name}")  # noqa: B023


def test_a_lost_engine_costs_no_replica_and_no_request(two: Cluster, alone: dict[str, str]) -> None:
    """Requests that come while a fresh one starts wait for it, or go to the other replica."""
    before = two.replicas
    (lost,) = engines(before[0])
    strike(lost, signal.SIGKILL)
    streams = [two.stream(PROMPTS[number % 2], LONG // 4) for number in range(8)]
    for number, stream in enumerate(streams):
        assert stream.ended().whole, stream.error
        assert alone[PROMPTS[number % 2]].startswith(stream.text)
    eventually(lambda: [pid for pid in engines(before[0]) if pid != lost], "the replica has another engine")
    assert two.replicas == before


def test_a_session_stays_on_its_replica(two: Cluster, sessions: list[str]) -> None:
    found = [[two.replica_of(session) for _ in range(4)] for session in sessions]
    assert [len(set(replicas)) for replicas in found] == [1, 1]


def test_a_killed_replica_costs_only_its_own_requests(two: Cluster, sessions: list[str], alone: dict[str, str]) -> None:
    before = two.replicas
    with two.slow():
        streams = [two.stream(PROMPTS[number // 2 % 2], LONG, sessions[number % 2]).begun() for number in range(6)]
        (engine,) = engines(before[0])
        os.kill(before[0], signal.SIGKILL)
    later = [two.stream(PROMPTS[0], 8) for _ in range(8)]
    eventually(lambda: ended(engine), "the engine has died with its replica")
    assert sorted([stream.ended().whole for stream in streams]) == [False] * 3 + [True] * 3
    assert len({stream.whole for stream in streams[::2]}) == 1, "the replica of a session has died, or none"
    assert all(stream.text in alone.values() for stream in streams if stream.whole)
    assert all(stream.ended().whole and alone[PROMPTS[0]].startswith(stream.text) for stream in later)
    two.wait_running(2)
    assert len(set(two.replicas) - set(before)) == 1
    assert all(two.stream("Hi", 4).ended().whole for _ in range(8))
