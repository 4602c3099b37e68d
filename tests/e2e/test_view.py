"""A client of the embedded model sees the engine at work, its own request, and where its prompt left the cache."""

import json
from pathlib import Path

import pytest

from tests.e2e.server import serving

PAGE = 32


@pytest.mark.parametrize("n_shared", [3 * PAGE + 7])
def test_feed_request_and_cache_miss(short_model: Path, n_shared: int) -> None:
    prompt = [100 + n for n in range(6 * PAGE)]
    other = [*prompt[:n_shared], *(2000 + n for n in range(50))]
    with serving(str(short_model), "--max-sequences", "1", paced=True) as server:
        ask = {"prompt": prompt, "max_tokens": 40, "ignore_eos": True}
        assert server.http.post("/v1/completions", json=ask).json()["timings"]["cache_miss"] == {
            "at": 0,
            "reason": "new",
        }
        missed = server.http.post("/v1/completions", json={**ask, "prompt": other}).json()["timings"]
        assert missed["cache_miss"] == {"at": n_shared, "reason": "diverged"}
        assert missed["cache_n"] == n_shared
        again = server.http.post("/v1/completions", json=ask).json()["timings"]
        assert (again["cache_miss"], again["cache_n"]) == (None, 6 * PAGE - 1)
        with server.slow(), server.http.stream("GET", "/v1/engine/events") as events:
            lines = events.iter_lines()
            long = {**ask, "max_tokens": 1500, "stream": True}
            with server.http.stream("POST", "/v1/completions", json=long, headers={"x-request-id": "mine"}) as stream:
                chunks = stream.iter_lines()
                next(chunks)
                data = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
                event = next(event for event in data if event["steps"] and event["sequences"])
                assert event["sequences"][0]["cached"] == 6 * PAGE - 1
                assert event["sequences"][0]["pages"][0]["held"] == event["pools"][0]["held"]
                mine = server.http.get("/v1/requests/mine").json()
                assert mine["state"] == "decode"
                assert mine["generated_tokens"] > 0
                assert server.http.delete("/v1/requests/mine").json()["cancelled"] == 1
                last = [line for line in chunks if line.startswith("data: {")][-1]
        assert json.loads(last[6:])["choices"][0]["finish_reason"] == "abort"
        server.wait_idle()
