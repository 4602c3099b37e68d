"""Replicas that come and go with the load, and one whose engine is beyond repair."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.ray.cluster import Cluster, engines
from tests.ray.conftest import LONG, LONGEST, PROMPTS
from tests.waiting import ended, eventually


@pytest.fixture(scope="module")
def scaling(ray: Cluster) -> Iterator[Cluster]:
    """Two replicas at first, and one for each four requests."""
    with ray.deployed(
        min_replicas=1,
        initial_replicas=2,
        max_replicas=2,
        target_ongoing_requests=4,
        upscale_delay_s=1,
        downscale_delay_s=4,
    ):
        yield ray


def test_a_replica_that_is_scaled_away_finishes_its_streams(scaling: Cluster, alone: dict[str, str]) -> None:
    """Each of two replicas has streams, which together are too few for two."""
    before = [pid for replica in scaling.replicas for pid in (replica, *engines(replica))]
    with scaling.slow():
        # While slow they last for half a minute. What is left of them must fit into Ray's grace period.
        streams = [scaling.stream(PROMPTS[number % 2], 3 * LONG).begun() for number in range(4)]
        running = scaling.metrics("noria_requests_running").values()
        assert min(running) > 0, "Ray sends a request to the less busy replica"
        eventually(lambda: "STOPPING" in scaling.states, "Ray stops a replica")
        assert all(stream.is_alive() for stream in streams), "it is stopped in mid-stream"
    assert all(stream.ended().whole for stream in streams)
    assert all(stream.text.startswith(alone[PROMPTS[number % 2]]) for number, stream in enumerate(streams))
    assert [stream.text for stream in streams[:2]] == [stream.text for stream in streams[2:]]
    scaling.wait_running(1)
    eventually(lambda: sum(map(ended, before)) == 2, "the replica and its engine have ended")


def test_load_adds_a_replica(scaling: Cluster) -> None:
    with scaling.slow():
        streams = [scaling.stream(PROMPTS[0], LONGEST) for _ in range(6)]
        eventually(lambda: len(scaling.replicas) == 2, "another replica starts")
        eventually(lambda: scaling.states == {"RUNNING": 2}, "it serves")
        for stream in streams:
            stream.is_left = True
    assert not any(stream.ended().error for stream in streams)


def test_a_replica_whose_engine_is_beyond_repair_is_replaced(scaling: Cluster) -> None:
    scaling.wait_running(1)
    (broken,) = scaling.replicas

    def kill_engines() -> bool:
        """Whether the replica is gone; until then no engine of it lives to load the model."""
        for pid in engines(broken):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return broken not in scaling.replicas

    eventually(kill_engines, "Ray ends the replica")
    scaling.wait_running(1)
    assert scaling.stream(PROMPTS[0], 8).ended().whole
