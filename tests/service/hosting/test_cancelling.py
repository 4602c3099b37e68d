"""Requests that end while they wait for their model: each ends at once, and the load goes on."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.hosting.serving import LATE, facts, posted, said, serving, states, waits
from tests.service.live import USER, Live, answer, hurried
from tests.waiting import PATIENCE, eventually

ID = {"x-request-id": "one"}
COMPLETION = ("/v1/completions", {"prompt": "hi"})
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    COMPLETION,
    ("/v1/completions", {"prompt": "hi", "stream": True}),
    ("/v1/messages", {"messages": USER, "max_tokens": 4}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/responses", {"input": "hi", "stream": True}),
    ("/v1/embeddings", {"input": "hi"}),
]


def loads(live: Live) -> bool:
    return states(live)["b"] == "loading"


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_a_request_that_is_cancelled_while_its_model_loads_ends_at_once(
    path: str, body: dict[str, Any], tmp_path: Path
) -> None:
    with ExitStack() as ending, serving(tmp_path, {"a": {}, "b": {"source": "large", **LATE}}) as live:
        with posted(live, path, {**body, "model": "b"}, **ID) as future:
            eventually(lambda: waits(live, "one", "loading"), "it waits")
            assert live.http.delete("/v1/requests/one").json()["cancelled"] == 1
            reply = future.result(PATIENCE)
        assert loads(live)
        assert reply.status_code == 410
        assert reply.json()["error"]["message"] == "the request was cancelled with DELETE /v1/requests/ID"
        assert (facts(live, "one")["state"], facts(live, "one")["outcome"]) == ("finished", "abort")
        assert not live.model("b").waiting.total
        ending.enter_context(hurried())
        assert said(live, "b") == answer("hi", 5)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_client_leaves_while_its_model_loads_ends_at_once(stream: bool, tmp_path: Path) -> None:
    path, body = COMPLETION
    with ExitStack() as ending, serving(tmp_path, {"a": {}, "b": {"source": "large", **LATE}}) as live:
        with pytest.raises(httpx.ReadTimeout):
            live.post(path, {**body, "model": "b", "stream": stream}, headers=ID, timeout=0.5)
        eventually(lambda: facts(live, "one")["outcome"] == "abort", "it has ended")
        assert loads(live)
        assert not live.model("b").waiting.total
        ending.enter_context(hurried())
        assert said(live, "b") == answer("hi", 5)
