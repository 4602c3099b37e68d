"""A conversation whose server is restarted, over HTTP: its prompt comes from the disk, for its key alone."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import LiveServer, serving
from tests.waiting import eventually

WRITTEN = "noria_prefix_store_written_pages_total"
TEXT = "A noria is a wheel with buckets. " * 40


def ask(server: LiveServer, key: str = "one", **more: Any) -> dict[str, Any]:
    body = {"prompt": TEXT, "max_tokens": 8, "temperature": 0, "seed": 1, "logprobs": 2, **more}
    response = server.http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


def parts(answer: dict[str, Any]) -> tuple[Any, int, int]:
    """The choice, and the prompt tokens that came from memory and from the disk."""
    timings = answer["timings"]
    return answer["choices"], timings["cache_n"] - timings["cache_disk_n"], timings["cache_disk_n"]


@pytest.fixture
def flags(short_model: Path, tmp_path: Path) -> list[str]:
    store = ["--prefix-store", str(tmp_path / "pages"), "--prefix-store-size", "1GiB"]
    return [str(short_model), *store, "--cache-memory", "256MiB"]


def test_a_restart_and_a_second_server_lose_no_prompt(flags: list[str]) -> None:
    """The second server reads what the first one has written while both run, for its key alone.

    The keys change their places, by which unnamed ones are called.
    """
    one, two = ("--api-key", "one"), ("--api-key", "two")
    with serving(*flags, *one, *two) as first:
        first.http.headers["authorization"] = "Bearer one"  # for its metrics
        computed, *cached = parts(ask(first))
        assert cached == [0, 0]
        n_prompt = ask(first, max_tokens=1)["usage"]["prompt_tokens"]
        n_full = (n_prompt - 1) // 32 * 32
        eventually(lambda: first.metric(WRITTEN) >= n_full // 32, "an idle server saves its pages")
        with serving(*flags, *two, *one, "--max-sequences", "3") as second:
            second.http.headers["authorization"] = "Bearer one"
            assert parts(ask(second, "two")) == (computed, 0, 0), "a key does not find the pages of another"
            assert parts(ask(second)) == (computed, 0, n_full)
            assert second.metric("noria_prefix_cache_disk_tokens_total") == n_full
            assert parts(ask(second))[0] == computed
        assert parts(ask(first, cache_salt="other")) == (computed, 0, 0)
    with serving(*flags, *one, *two) as third:
        assert parts(ask(third)) == (computed, 0, n_full)
        assert parts(ask(third, cache_salt="other")) == (computed, 0, n_full), "it was saved at the end"


def test_an_engine_that_dies_finds_its_pages(flags: list[str]) -> None:
    with serving(*flags) as server:
        computed, *_ = parts(ask(server))
        eventually(lambda: server.metric(WRITTEN) >= 4, "an idle server saves its pages")
        os.kill(server.engine_pid, signal.SIGKILL)
        short = {"prompt": "a", "max_tokens": 1}
        eventually(lambda: server.http.post("/v1/completions", json=short).status_code == 200, "another engine")
        choices, memory, disk = parts(ask(server))
        assert (choices, memory) == (computed, 0)
        assert disk > 0
