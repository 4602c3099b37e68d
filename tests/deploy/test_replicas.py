"""Replicas behind nginx and HAProxy: conversations stay, a drain and a death cost no request that could be saved."""

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.proxies import REPLICAS, proxied
from tests.e2e.server import LiveServer, serving
from tests.service.live import Live, hurried, running
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.tools

HEADER = "x-conversation-id"
COMPLETIONS = "/v1/completions"
NAMES = [f"conversation-{number}" for number in range(16)]
"""So many that all of them in one place would mean that nothing is hashed."""


def addresses(*servers: Live | LiveServer) -> list[str]:
    return [server.url.removeprefix("http://") for server in servers]


def asked(http: httpx.Client, conversation: str | None, **body: Any) -> dict[str, Any]:
    """The answer to a completion; its `model` names the replica."""
    headers = {} if conversation is None else {HEADER: conversation}
    response = http.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 2, **body}, headers=headers)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def homes(http: httpx.Client) -> dict[str, str]:
    """The replica of each conversation."""
    return {name: asked(http, name)["model"] for name in NAMES}


@pytest.mark.parametrize("path", REPLICAS)
def test_conversations_stay_with_a_replica_until_it_drains(path: str, tmp_path: Path) -> None:
    with (
        running(model="slow", served_model_name=("first",), drain_timeout=PATIENCE) as first,
        running(served_model_name=("second",)) as second,
        proxied(path, tmp_path, addresses(first, second)) as http,
    ):
        before = homes(http)
        assert set(before.values()) == {"first", "second"}
        assert homes(http) == before
        assert {asked(http, None)["model"] for _ in 4 * NAMES} == {"first", "second"}
        own = next(name for name, home in before.items() if home == "first")
        body = {"prompt": "long", "max_tokens": 1000, "stream": True}
        with http.stream("POST", COMPLETIONS, json=body, headers={HEADER: own}) as response:
            lines = response.iter_lines()
            next(lines)
            first.server.handle_exit(signal.SIGTERM, None)
            eventually(lambda: first.http.get("/ready").status_code == 503, "it drains")
            assert set(homes(http).values()) == {"second"}
            assert {asked(http, None)["model"] for _ in NAMES} == {"second"}
            assert first.running()
            with hurried():
                assert [line for line in lines if line][-1] == "data: [DONE]"
        eventually(lambda: not first.running(), "the drained server has ended")
        assert set(homes(http).values()) == {"second"}
        with running(served_model_name=("first",), at=int(first.url.rpartition(":")[2])):
            eventually(lambda: homes(http) == before, "the conversations are back")


@contextmanager
def gone() -> Iterator[str]:
    """The address of a machine that is gone: it refuses no connection and accepts none. Its backlog is full."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("path", ["nginx/noria.conf", *REPLICAS])
def test_a_machine_that_is_gone_costs_a_delay(path: str, tmp_path: Path) -> None:
    with running() as live, gone() as silent, proxied(path, tmp_path, [silent, *addresses(live)]) as http:
        for name in NAMES[:4] if path in REPLICAS else NAMES[:1]:  # the two servers have no memory of a failure
            assert asked(http, name)["model"] == "fake"


PLAIN, STREAM = ({"prompt": f"Write about {topic}:", "max_tokens": 12, "temperature": 0} for topic in ("rain", "tea"))
LONG = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True}


def told(http: httpx.Client, conversation: str, body: dict[str, Any]) -> str:
    """The text of a stream that ends as it should."""
    with http.stream("POST", COMPLETIONS, json={**body, "stream": True}, headers={HEADER: conversation}) as response:
        *events, last = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert last == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


class Load:
    """What a proxy sends to the second server: a stream that has begun, an answer that has not, and two that wait."""

    def __init__(self, http: httpx.Client, stack: ExitStack) -> None:
        self.http = http
        self.name = next(name for name in NAMES if asked(http, name)["model"] == "second")
        body = {**LONG, "max_tokens": 4000, "stream": True}
        request = http.stream("POST", COMPLETIONS, json=body, headers={HEADER: self.name})
        self.begun = stack.enter_context(request).iter_lines()
        assert next(self.begun).startswith("data: {")

    def run(self, pool: ThreadPoolExecutor) -> None:
        self.long = pool.submit(asked, self.http, self.name, **LONG)

    def wait(self, pool: ThreadPoolExecutor) -> None:
        self.plain = pool.submit(asked, self.http, self.name, **PLAIN)
        self.stream = pool.submit(told, self.http, self.name, STREAM)

    def check(self, alone: list[str]) -> None:
        """Only the stream that had begun is lost, and its client knows."""
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
            list(self.begun)
        assert self.long.result()["usage"]["completion_tokens"] == LONG["max_tokens"]
        assert [self.plain.result()["choices"][0]["text"], self.stream.result()] == alone
        assert {answer["model"] for answer in (self.long.result(), self.plain.result())} == {"first"}
        assert asked(self.http, self.name)["model"] == "first"


def test_a_replica_killed_under_load_costs_only_the_streams_that_had_begun(tmp_path: Path) -> None:
    """Both proxies at once, before the same two servers of the embedded model."""
    flags = ("--max-sequences", str(2 * len(REPLICAS)), "--served-model-name")
    with (
        serving(*flags, "first") as first,
        serving(*flags, "second", paced=True) as second,
        second.slow(),
        ExitStack() as stack,
        ThreadPoolExecutor() as pool,
    ):
        alone = [asked(first.http, None, **body)["choices"][0]["text"] for body in (PLAIN, STREAM)]
        loads = []
        for path in REPLICAS:
            folder = tmp_path / path.replace("/", "-")
            folder.mkdir()
            http = stack.enter_context(proxied(path, folder, addresses(first, second)))
            loads.append(Load(http, stack))
        for step, state in ((Load.run, "running"), (Load.wait, "waiting")):
            for load in loads:
                step(load, pool)
            eventually(lambda: second.metric(f"noria_requests_{state}") == 2 * len(REPLICAS), state)  # noqa: B023
        second.kill()
        for load in loads:
            load.check(alone)
