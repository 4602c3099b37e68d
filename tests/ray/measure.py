"""The figures of docs/ray.md: `.ray/bin/python -m tests.ray.measure`. Two minutes on a quiet machine."""

import os
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.e2e.server import MODEL, serving
from tests.ray.cluster import Cluster, cluster
from tests.waiting import PATIENCE, eventually

N_REQUESTS, N_TOKENS = 100, 200


def median_ms(url: str) -> float:
    """The median time of a request with one prompt token and one token of output, one after the other."""
    order = {"model": MODEL, "prompt": "Hi", "max_tokens": 1}
    times = []
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        for _ in range(N_REQUESTS):
            began = time.perf_counter()
            client.post("/v1/completions", json=order).raise_for_status()
            times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times[N_REQUESTS // 10 :])


def tokens_per_second(url: str, n_streams: int) -> float:
    """The rate of several streams together."""
    order = {"model": MODEL, "prompt": "Hi", "max_tokens": N_TOKENS, "ignore_eos": True, "stream": True}

    def read(_: int) -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=order, timeout=PATIENCE) as response:
            lines = [line for line in response.iter_lines() if line]
            assert lines[-1] == "data: [DONE]", lines[-1]

    began = time.perf_counter()
    with ThreadPoolExecutor(n_streams) as pool:
        list(pool.map(read, range(n_streams)))
    return n_streams * N_TOKENS / (time.perf_counter() - began)


def show(name: str, url: str) -> None:
    rates = "   ".join(f"{n} streams {tokens_per_second(url, n):.0f} tokens/s" for n in (1, 8))
    print(f"{name}: request {median_ms(url):.1f} ms   {rates}", flush=True)


def replaced_seconds(found: Cluster) -> float:
    """The time from the death of one of two replicas until two serve again."""
    began, before = time.perf_counter(), found.replicas
    os.kill(before[0], signal.SIGKILL)
    eventually(lambda: set(found.replicas) - set(before) and found.states == {"RUNNING": 2}, "Ray replaces the replica")
    return time.perf_counter() - began


def main() -> None:
    with serving("--threads", "1") as server:
        show("direct", server.url)
    with cluster() as started:
        with started.deployed() as one:
            show("through Ray's proxy", one.url)
        with started.deployed(min_replicas=2, max_replicas=2) as two:
            print(f"a killed replica is back after {replaced_seconds(two):.1f} s")


if __name__ == "__main__":
    main()
