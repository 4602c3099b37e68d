"""The cluster of all tests, and what one server without Ray answers."""

from collections.abc import Iterator

import pytest

from tests.e2e.server import MODEL, serving
from tests.ray.cluster import Cluster, cluster

PROMPTS = ("Count from one to a hundred.", "Write a long story about a water wheel.")
LONG = 400
"""Tokens of a long answer: while the cluster is slow 12 s, in which a test does something to the replicas."""
LONGEST = 1900
"""Tokens that nearly fill the model's context: while the cluster is slow a minute, in which Ray scales."""


@pytest.fixture(scope="session")
def alone() -> dict[str, str]:
    """The greedy answer to each of `PROMPTS` from `noria serve`, cut after `LONG` tokens."""
    with serving("--threads", "1") as server:
        answers = {}
        for prompt in PROMPTS:
            messages = [{"role": "user", "content": prompt}]
            order = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": LONG, "ignore_eos": True}
            answers[prompt] = server.http.post("/v1/chat/completions", json=order).json()["choices"][0]["message"][
                "content"
            ]
        return answers


@pytest.fixture(scope="session")
def ray(alone: dict[str, str]) -> Iterator[Cluster]:
    with cluster() as started:
        yield started


@pytest.fixture(scope="module")
def two(ray: Cluster) -> Iterator[Cluster]:
    """Two replicas, always, which keep their sessions."""
    with ray.deployed(min_replicas=2, max_replicas=2, session_affinity=True):
        yield ray


@pytest.fixture(scope="module")
def sessions(two: Cluster) -> list[str]:
    """A session on each replica."""
    found: dict[str, str] = {}
    for number in range(100):
        found[two.replica_of(f"conversation {number}")] = f"conversation {number}"
        if len(found) == 2:
            return list(found.values())
    raise AssertionError("all sessions are on one replica")
