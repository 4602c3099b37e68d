"""What a web page may do: by the name of the server, by the page's origin, and by what browsers say of it."""

import logging
import socket
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from model.errors import OptionError
from service.access.browsers import BrowserRules
from service.http.listening import is_local
from service.settings import Settings
from tests.service.http.connection.raw import START, connected, read_answer, whole
from tests.service.live import Live, answer, running

EVIL = "http://evil.example"
ROUTES = (
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/v1/engine/events"),
    ("GET", "/live"),
    ("GET", "/docs"),
    ("GET", "/"),
    ("GET", "/nowhere"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/unload_lora_adapter"),
    ("DELETE", "/v1/requests/one"),
)


def code(rules: BrowserRules, *, is_page: bool = False, **fields: str) -> str | None:
    headers = {name.replace("_", "-").encode(): value.encode() for name, value in fields.items()}
    refusal = rules.refusal(headers, is_page=is_page)
    return None if refusal is None else refusal.code


LOCAL = BrowserRules(frozenset({"127.0.0.1", "noria.example.org"}))


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8000", "LocalHost:8000", "localhost.", "localhost.:80", "app.localhost:8000"),
        *("127.0.0.1", "127.0.0.1:8000", "10.1.2.3:8000", "127.1:8000", "[::1]", "[::1]:8000", "[fe80::1%25eth0]:1"),
        *("noria.example.org", "noria.example.org:443", "Noria.Example.ORG."),
    ],
)
def test_names_that_no_stranger_owns_pass(host: str) -> None:
    assert code(LOCAL, host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evillocalhost"),
        *("noria.example.org.evil.example", "evil.example.:8000", "1.2.3.4.5", "[evil.example]:8000", "::1", "a:b"),
        *("", ":8000", "localhost:8000:evil", "127.0.0.1,evil.example", "user@127.0.0.1"),
    ],
)
def test_other_names_do_not(host: str) -> None:
    assert code(LOCAL, host=host) == "host_not_allowed"
    assert code(LOCAL, host=host, is_page=True, sec_fetch_site="none", sec_fetch_mode="navigate") == "host_not_allowed"


def test_any_name_passes_without_a_list_and_with_a_star() -> None:
    for rules in (BrowserRules(), BrowserRules(frozenset({"*", "a"}))):
        assert code(rules, host="evil.example:8000") is None
    assert code(LOCAL) is None  # HTTP/1.0


def test_an_origin_without_a_name_is_not_that_of_a_request_without_one() -> None:
    assert code(BrowserRules(), origin="null") == "origin_not_allowed"
    assert code(BrowserRules(), host="", origin="null") == "origin_not_allowed"


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, False),  # a program
        ({"sec_fetch_site": "same-origin"}, False),
        ({"sec_fetch_site": "none"}, False),  # typed by a person
        ({"sec_fetch_site": "cross-site"}, True),
        ({"sec_fetch_site": "same-site"}, True),
        ({"sec_fetch_site": "of-the-future"}, True),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, True),
        ({"sec_fetch_site": "cross-site", "origin": EVIL}, True),
        ({"sec_fetch_site": "cross-site", "origin": "https://app.example"}, False),
        ({"sec_fetch_site": "same-site", "origin": "https://app.example"}, False),
        ({"sec_fetch_site": "cross-site", "origin": "http://app.example"}, True),
        ({"sec_fetch_site": "same-origin", "origin": "https://public.example"}, False),  # a proxy changed Host
        ({"origin": EVIL}, True),  # plain HTTP to another machine
        ({"origin": "null"}, True),
        ({"origin": "http://[bad"}, True),
        ({"origin": "https://app.example"}, False),
        ({"origin": "http://10.0.0.5:8000"}, False),
        ({"origin": "http://10.0.0.5"}, False),
        ({"origin": "http://10.0.0.6:8000"}, True),
    ],
    ids=str,
)
def test_pages_of_others_may_not_call(fields: dict[str, str], refused: bool) -> None:
    rules = BrowserRules(origins=("https://app.example",))
    assert code(rules, host="10.0.0.5:8000", **fields) == ("origin_not_allowed" if refused else None)
    assert code(BrowserRules(origins=("*",)), host="10.0.0.5:8000", **fields) is None


def test_a_link_leads_to_a_page_and_to_nothing_else() -> None:
    link = {"host": "localhost", "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert code(LOCAL, is_page=True, **link) is None
    assert code(LOCAL, is_page=False, **link) == "origin_not_allowed"
    assert code(LOCAL, is_page=True, **{**link, "sec_fetch_mode": "no-cors"}) == "origin_not_allowed"  # a script


# The server


def statuses(live: Live, **headers: str) -> dict[str, int]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    found = {}
    for method, path in ROUTES:
        with live.http.stream(method, path, headers=fields, json={} if method == "POST" else None) as response:
            found[path] = response.status_code
    return found


def test_a_rebound_name_reaches_nothing() -> None:
    with running() as live:
        assert set(statuses(live, host="evil.example:8000").values()) == {403}
        error = live.http.get("/v1/models", headers={"host": "evil.example:8000"}).json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "host_not_allowed")
        assert "evil.example:8000" in error["message"]
        assert "--allowed-hosts" in error["message"]
        inner = live.post("/v1/messages", {}, headers={"host": "evil.example"}).json()
        assert (inner["type"], inner["error"]["type"]) == ("error", "permission_error")
        assert live.http.get("/v1/models", headers={"host": "app.localhost"}).status_code == 200
        assert live.metric("noria_requests_total", outcome="refused") == 3  # one for completions, two for messages
        with connected(live) as sock:  # HTTP/1.0 needs no Host
            sock.sendall(whole(start=START.replace(b"HTTP/1.1\r\nHost: localhost\r\n", b"HTTP/1.0\r\n")))
            assert read_answer(sock).status == 200


def test_a_page_of_another_site_reaches_the_page_alone_and_only_by_a_link() -> None:
    with running() as live:
        called = statuses(live, sec_fetch_site="cross-site", sec_fetch_mode="cors", origin=EVIL)
        assert set(called.values()) == {403}
        linked = statuses(live, sec_fetch_site="cross-site", sec_fetch_mode="navigate")
        assert {path for path, status in linked.items() if status != 403} == {"/", "/docs"}
        error = live.http.get("/metrics", headers={"sec-fetch-site": "cross-site", "origin": EVIL}).json()["error"]
        assert error["code"] == "origin_not_allowed"
        assert EVIL in error["message"]
        assert "--cors-origin" in error["message"]


def test_a_refused_body_is_not_read() -> None:
    """The answer comes although the body never does."""
    with running() as live, connected(live) as sock:
        sock.sendall(START.replace(b"localhost", b"evil.example") + b"Content-Length: 1000\r\n\r\n")
        assert read_answer(sock).status == 403


def test_origins_of_cors_may_call_from_a_public_page() -> None:
    """A public page asks a private address for leave with Access-Control-Request-Private-Network."""
    origin = {"origin": "https://app.example", "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    with running(cors_origins=("https://app.example",), api_keys=("key",)) as live:
        preflight = {**origin, **ask, "access-control-request-private-network": "true"}
        response = live.http.options("/v1/completions", headers=preflight)
        assert response.status_code == 200
        assert response.headers["access-control-allow-private-network"] == "true"
        body, key = {"prompt": "hi", "max_tokens": 3}, {"authorization": "Bearer key"}
        done = live.post("/v1/completions", body, headers={**origin, **key})
        assert done.json()["choices"][0]["text"] == answer("hi", 3)
        refused = live.post("/v1/completions", body, headers=origin)
        assert refused.status_code == 401
        for reply in (response, done, refused):
            assert reply.headers["access-control-allow-origin"] == "https://app.example"
        other = live.http.options("/v1/completions", headers={**preflight, "origin": EVIL})
        assert "access-control-allow-origin" not in other.headers
        assert live.post("/v1/completions", body, headers={**origin, **key, "origin": EVIL}).status_code == 403


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, 403),
        ({"allowed_hosts": ("other.example, Noria.Example",)}, 200),
        ({"allowed_hosts": ("other.example",)}, 403),
        ({"allowed_hosts": ("*",)}, 200),
        ({"api_keys": ("key",)}, 200),
        ({"api_keys": ("key",), "allowed_hosts": ("other.example",)}, 403),
        ({"host": "0.0.0.0"}, 200),
        ({"host": "0.0.0.0", "allowed_hosts": ("other.example",)}, 403),
    ],
    ids=str,
)
def test_who_may_name_the_server(options: dict[str, Any], status: int) -> None:
    with running(**options) as live:
        key = {"authorization": "Bearer key"}
        assert live.http.get("/v1/models", headers={"host": "noria.example:80", **key}).status_code == status
        assert live.http.get("/v1/models", headers=key).status_code == 200


def test_a_name_on_a_unix_socket_is_a_proxys(tmp_path: Path) -> None:
    with running(uds=tmp_path / "noria.sock") as live:
        assert live.http.get("/v1/models", headers={"host": "noria.example"}).status_code == 200


@pytest.mark.parametrize("name", ["http://a", "a:80", "", "a,,b", "a b", "*.a"])
def test_names_that_can_never_match_end_the_start(name: str) -> None:
    with pytest.raises(OptionError, match="--allowed-hosts"):
        Settings(allowed_hosts=(name,)).check()


# The line at the start


class Bound:
    """What `is_local` reads of a socket."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.family = socket.AF_UNIX if "/" in address else socket.AF_INET6 if ":" in address else socket.AF_INET

    def getsockname(self) -> Any:
        return self._address if "/" in self._address else (self._address, 8000)


@pytest.mark.parametrize(
    ("addresses", "local"),
    [
        (("127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1", "/run/noria.sock"), True),
        (("0.0.0.0", "10.0.0.5", "::", "fe80::1%eth0", "::ffff:10.0.0.5"), False),
    ],
)
def test_addresses_of_this_machine_alone(addresses: tuple[str, ...], local: bool) -> None:
    assert all(is_local(cast(socket.socket, Bound(address))) == local for address in addresses)


@pytest.mark.parametrize(
    ("options", "warned"),
    [({}, False), ({"host": "0.0.0.0"}, True), ({"host": "0.0.0.0", "api_keys": ("key",)}, False)],
    ids=str,
)
def test_an_open_server_says_so(options: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "noria"), running(**options) as live:
        port = httpx.URL(live.url).port
    lines = [record.getMessage() for record in caplog.records if "--api-key" in record.getMessage()]
    assert len(lines) == warned
    assert all(f"0.0.0.0, port {port}:" in line for line in lines)
