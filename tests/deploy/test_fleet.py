"""Two models and two replicas behind nginx and HAProxy: what a request's body says decides where it goes."""

import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from tests.deploy.proxies import DEPLOY, REPLICAS, proxied
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.tools

CHAT = "/v1/chat/completions"
PAGE = (DEPLOY.parent / "docs/proxies.md").read_text()
NAMES = [f"conversation {number}" for number in range(16)]
"""So many that all of them in one place would mean that nothing is hashed."""


Request = Callable[[str], tuple[dict[str, Any], dict[str, str]]]
"""Makes the body and the headers of a request from a text."""


class Upstream(ThreadingHTTPServer):
    """A server that answers with its name, while it is `full` with a 429, and to "wait" when it is `released`."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.name = name
        self.full = False
        self.n_refused = 0
        self.n_waiting = 0
        self.released = Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_GET(self) -> None:
        self.answer(200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if b"wait" in body:
            self.server.n_waiting += 1
            self.server.released.wait(PATIENCE)
        self.server.n_refused += self.server.full
        self.answer(429 if self.server.full else 200)

    def answer(self, status: int) -> None:
        body = self.server.name.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("retry-after", "7")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no line for each request."""


@contextmanager
def upstreams(*names: str) -> Iterator[list[Upstream]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(Upstream(name)) for name in names]
        for server in servers:
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
            stack.callback(server.shutdown)
        yield servers


@pytest.fixture(params=REPLICAS)
def path(request: pytest.FixtureRequest) -> str:
    configuration: str = request.param
    return configuration


@pytest.fixture
def fleet(path: str, tmp_path: Path) -> Iterator[tuple[httpx.Client, list[Upstream]]]:
    """A client of the proxy, and its servers: two of one model, one of the other."""
    with (
        upstreams("first", "second", "third") as servers,
        proxied(path, tmp_path, [server.address for server in servers]) as http,
    ):
        yield http, servers


def sent(http: httpx.Client, body: dict[str, Any], **headers: str) -> str:
    """The name of the server that answers."""
    response = http.post(CHAT, json=body, headers={name.replace("_", "-"): text for name, text in headers.items()})
    assert response.status_code == 200
    return response.text


def said(text: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_the_model_of_the_body_chooses_the_servers(fleet: tuple[httpx.Client, list[Upstream]]) -> None:
    http, _ = fleet
    two = {"first", "second"}
    assert {sent(http, {**said(name), "model": "devstral"}) for name in NAMES} == {"third"}
    assert {sent(http, {**said("a" * 500_000), "model": "devstral"}) for _ in range(4)} == {"third"}
    assert {sent(http, {**said(name), "model": "another"}) for name in NAMES} == two
    assert {sent(http, said(name)) for name in NAMES} == two
    assert {http.get("/v1/models").text for _ in range(64)} == two
    for body in (b"", b"{", b'"model"', b"[]", b"null", b"\xff"):
        assert http.post(CHAT, content=body).text in two


KEYS: dict[str, Request] = {
    "a key for the prompt cache": lambda name: ({**said("hi"), "prompt_cache_key": name}, {}),
    "the header of this proxy": lambda name: (said("hi"), {"X-Conversation-Id": name}),
    "Vibe": lambda name: (said("hi"), {"x-affinity": name}),
    "Claude Code": lambda name: (said("hi"), {"X-Claude-Code-Session-Id": name}),
    "Codex": lambda name: (said("hi"), {"session-id": name}),
    "OpenCode": lambda name: (said("hi"), {"x-session-affinity": name}),
    "another agent": lambda name: (said("hi"), {"x-session-id": name}),
    "an API key": lambda name: (said("hi"), {"authorization": f"Bearer {name}"}),
    "an API key in Anthropic's header": lambda name: (said("hi"), {"x-api-key": name}),
    "the first message": lambda name: (said(name), {}),
    "the first message in parts": lambda name: (said([{"type": "text", "text": name}]), {}),
}
"""The body and headers of a client's request, by the text that tells its conversations apart."""


@pytest.mark.parametrize("client", KEYS)
def test_a_conversation_stays_with_its_replica(client: str, fleet: tuple[httpx.Client, list[Upstream]]) -> None:
    """As it grows, and whatever stands before it in the system's message."""
    http, _ = fleet
    homes = {}
    for name in NAMES:
        body, headers = KEYS[client](name)
        homes[name] = http.post(CHAT, json=body, headers=headers).text
        more = [*body["messages"], {"role": "assistant", "content": "hello"}, {"role": "user", "content": "why?"}]
        for messages in (more, [{"role": "system", "content": "Be brief."}, *more]):
            grown = http.post(CHAT, json={**body, "messages": messages}, headers=headers)
            assert grown.text == homes[name]
    assert set(homes.values()) == {"first", "second"}


def test_stored_responses_stay_where_their_client_made_them(fleet: tuple[httpx.Client, list[Upstream]]) -> None:
    """Whatever a request says: only the replica that stored a response can continue it."""
    http, (first, _, _) = fleet
    homes = {}
    for name in NAMES:
        headers = {"authorization": f"Bearer {name}"}
        asked = [
            http.post("/v1/responses", json={"input": "hi"}, headers=headers),
            http.post("/v1/responses", json={"input": "why?", "previous_response_id": "resp_1"}, headers=headers),
            http.get("/v1/responses/resp_1", headers=headers),
            http.get("/v1/conversations/conv_1/items", headers=headers),
        ]
        (homes[name],) = {answer.text for answer in asked}
    assert set(homes.values()) == {"first", "second"}
    assert len({http.get("/v1/responses/resp_1").text for _ in NAMES}) == 1, "without an API key: by its address"
    first.full = True
    name = next(name for name, home in homes.items() if home == "first")
    refused = http.post("/v1/responses", json={"input": "hi"}, headers={"authorization": f"Bearer {name}"})
    assert (refused.status_code, refused.text) == (429, "first")


def test_what_names_a_conversation_comes_before_what_only_resembles_it(
    fleet: tuple[httpx.Client, list[Upstream]],
) -> None:
    http, _ = fleet
    ranks: list[Request] = [
        lambda name: ({}, {"x-conversation-id": name}),
        lambda name: ({"prompt_cache_key": name}, {}),
        lambda name: ({}, {"x-affinity": name}),
        lambda name: (said(name), {}),
    ]
    for rank, (higher, lower) in enumerate(pairwise(ranks)):
        homes = []
        for name in NAMES:
            body, headers = higher("the same")
            more, others = lower(name)
            homes.append(http.post(CHAT, json={**said("hi"), **body, **more}, headers={**headers, **others}).text)
        assert len(set(homes)) == 1, rank


def test_the_page_and_both_proxies_name_the_same_headers_in_the_same_order() -> None:
    page = re.search(r"3\. a header of an agent: ([^.]+)\n4\. ", PAGE)
    script = re.search(r"SESSIONS = \[(.+)\];", (DEPLOY / "nginx/noria.js").read_text())
    assert page
    assert script
    rules = re.findall(r"set-var\(txn\.key\) req\.hdr\((.+)\)", (DEPLOY / "haproxy/haproxy.cfg").read_text())
    last, *others = reversed(rules)
    assert last == "x-conversation-id"
    for found in (re.findall(r"`(.+?)`", page[1]), re.findall(r'"(.+?)"', script[1])):
        assert [name.lower() for name in found] == others


def overflows(path: str) -> bool:
    """Whether the installed proxy can try another replica after a 429: HAProxy since 3.0.4."""
    if not path.startswith("haproxy"):
        return True
    told = subprocess.run(["haproxy", "-v"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"version (\d+)\.(\d+)\.(\d+)", told)
    assert version
    return tuple(int(part) for part in version.groups()) >= (3, 0, 4)


def test_a_full_replica_gives_its_requests_to_another(path: str, fleet: tuple[httpx.Client, list[Upstream]]) -> None:
    http, (first, second, _) = fleet
    before = {name: sent(http, said(name)) for name in NAMES}
    first.full = True
    answers = {name: http.post(CHAT, json=said(name)) for name in NAMES}
    at_home = [name for name, home in before.items() if home == "second"]
    assert all(answers[name].text == "second" for name in at_home)
    away = [answers[name] for name in NAMES if name not in at_home]
    assert first.n_refused >= len(away) > 0
    if overflows(path):
        assert {(answer.status_code, answer.text) for answer in away} == {(200, "second")}
    else:
        assert {(answer.status_code, answer.headers["retry-after"]) for answer in away} == {(429, "7")}
    second.full = True
    refused = [http.post(CHAT, json=said(name)) for name in NAMES]
    assert {(answer.status_code, answer.headers["retry-after"]) for answer in refused} == {(429, "7")}
    first.full = second.full = False
    assert {name: sent(http, said(name)) for name in NAMES} == before, "a refusal does not take a replica out"


def limited(requests: int, at_once: int) -> Callable[[str], str]:
    """Writes the example of the page, with other numbers, into HAProxy's configuration."""
    found = re.search(r"((?:    .*\n)+)\nThe table has a hash of the key", PAGE)
    assert found
    lines, place = found[1], "    use_backend devstral"
    for own, other in (("gt 600", f"gt {requests}"), ("gt 64", f"gt {at_once}")):
        assert lines.count(own) == 1
        lines = lines.replace(own, other)

    def edit(text: str) -> str:
        assert text.count(place) == 1
        return text.replace(place, lines + place)

    return edit


def of_key(http: httpx.Client, name: str, text: str = "hi") -> httpx.Response:
    return http.post(CHAT, json=said(text), headers={"authorization": f"Bearer {name}"})


def test_a_key_has_so_many_requests_in_a_minute_over_all_replicas(tmp_path: Path) -> None:
    with (
        upstreams("first", "second") as servers,
        proxied("haproxy/haproxy.cfg", tmp_path, [server.address for server in servers], limited(8, 64)) as http,
    ):
        answers = [of_key(http, "one", text) for text in NAMES]
        assert [answer.status_code for answer in answers] == [200] * 8 + [429] * 8
        assert {answer.text for answer in answers[:8]} == {"first", "second"}
        assert answers[-1].headers["retry-after"] == "10"
        assert answers[-1].json()["error"].keys() == {"message", "type", "param", "code"}
        assert of_key(http, "other").status_code == 200


def test_a_key_has_so_many_requests_at_once_over_all_replicas(tmp_path: Path) -> None:
    with (
        upstreams("first", "second") as servers,
        proxied("haproxy/haproxy.cfg", tmp_path, [server.address for server in servers], limited(600, 1)) as http,
        ThreadPoolExecutor() as pool,
    ):
        running = pool.submit(of_key, http, "one", "wait")
        eventually(lambda: any(server.n_waiting for server in servers), "a server has it")
        assert of_key(http, "one").status_code == 429
        assert of_key(http, "other").status_code == 200
        for server in servers:
            server.released.set()
        assert running.result().status_code == 200
        assert of_key(http, "one").status_code == 200
