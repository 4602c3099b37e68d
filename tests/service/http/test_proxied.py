"""What a reverse proxy says about a client, who is believed, and a server below a prefix."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.errors import OptionError
from service.http.connection.exchange import Proxies
from service.logs import JsonFormatter
from service.settings import Settings
from tests.service.live import USER, Live, running
from tests.waiting import eventually

PEER, UNIX = ("10.1.0.1", 4000), None
FOR, PROTO = b"x-forwarded-for", b"x-forwarded-proto"


def seen(scope: dict[str, Any], prefix: str | None = None, *believed: str) -> dict[str, Any]:
    """The scope as the application gets it."""
    whole = {"client": PEER, "scheme": "http", "headers": [], "path": "/", "raw_path": b"/", **scope}
    Proxies(prefix, Settings(forwarded_allow_ips=believed or ("10.1.0.0/16",)).proxies).undo(whole)
    return whole


@pytest.mark.parametrize(
    ("peer", "values", "client"),
    [
        (PEER, ["192.0.2.1"], "192.0.2.1"),
        (UNIX, ["192.0.2.1"], "192.0.2.1"),
        (("10.2.0.1", 4000), ["192.0.2.1"], "10.2.0.1"),
        (("127.0.0.1", 4000), ["192.0.2.1"], "127.0.0.1"),  # the default does not add to what is named
        (PEER, ["192.0.2.7, 192.0.2.1"], "192.0.2.1"),  # the first is what the client itself has written
        (PEER, ["192.0.2.7", "192.0.2.1"], "192.0.2.1"),  # HAProxy adds a field of its own
        (PEER, ["192.0.2.7, 192.0.2.1, 10.1.2.3"], "192.0.2.1"),  # two proxies
        (PEER, ["10.1.9.9, 10.1.2.3"], "10.1.9.9"),  # a client among the proxies
        (PEER, ["192.0.2.1:5000"], "192.0.2.1"),
        (PEER, ["[2001:db8::1]:5000"], "2001:db8::1"),
        (PEER, ["2001:db8::1"], "2001:db8::1"),
        (PEER, ["unknown"], "10.1.0.1"),
        (PEER, ["192.0.2.1, <script>, 10.1.2.3"], "10.1.2.3"),  # nothing before the nonsense counts
        (PEER, [""], "10.1.0.1"),
        (PEER, [], "10.1.0.1"),
        (UNIX, [], None),
    ],
)
def test_the_clients_address(peer: tuple[str, int] | None, values: list[str], client: str | None) -> None:
    scope = seen({"client": peer, "headers": [(FOR, value.encode()) for value in values]})
    assert (scope["client"] and scope["client"][0]) == client


def test_only_believed_peers_name_a_scheme() -> None:
    for value, scheme in ((b"https", "https"), (b"gopher", "http")):
        assert seen({"headers": [(PROTO, value)]})["scheme"] == scheme
    assert seen({"headers": [(PROTO, b"https")], "client": ("10.2.0.1", 1)})["scheme"] == "http"


def test_fields_that_proxies_pass_on_unread_do_not_count() -> None:
    fields = [(b"forwarded", b"for=192.0.2.1;proto=https"), (b"x-forwarded-prefix", b"/evil")]
    scope = seen({"headers": fields})
    assert (scope["client"], scope["scheme"], scope["path"]) == (PEER, "http", "/")


def test_several_proxies_are_named_with_commas_or_by_repetition() -> None:
    for names in (("10.0.0.0/8,2001:db8::/32", "192.0.2.1"), ("10.0.0.0/8", "2001:db8::/32 , 192.0.2.1")):
        assert list(map(str, Settings(forwarded_allow_ips=names).proxies)) == [
            "10.0.0.0/8",
            "2001:db8::/32",
            "192.0.2.1/32",
        ]
    assert list(map(str, Settings().proxies)) == ["127.0.0.1/32", "::1/128"]


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/noria/v1/models", "/v1/models"),
        ("/v1/models", "/v1/models"),  # the proxy has removed it
        ("/noria/", "/"),
        ("/noria", "/noria"),
        ("/norias", "/norias"),
        ("/x/noria/v1/models", "/x/noria/v1/models"),
        ("/noria/noria/v1", "/noria/v1"),
    ],
)
def test_the_prefix_is_removed_once(path: str, inside: str) -> None:
    scope = seen({"path": path, "raw_path": path.encode()}, "/noria")
    assert (scope["path"], scope["raw_path"]) == (inside, inside.encode())


def test_a_server_below_a_prefix() -> None:
    with running(root_path="/team/noria", api_keys=("key",)) as live:
        live.http.headers["authorization"] = "Bearer key"
        for prefix in ("/team/noria", ""):
            assert live.http.get(f"{prefix}/v1/models").json()["data"][0]["id"] == "fake"
            assert live.post(f"{prefix}/v1/chat/completions", {"messages": USER, "max_tokens": 2}).status_code == 200
            assert live.events(f"{prefix}/v1/completions", {"prompt": "hi", "max_tokens": 2})
        eventually(lambda: live.metric("noria_requests_total", outcome="length") == 4, "all four are counted")
        document = live.http.get("/team/noria/openapi.json").json()
        assert document["servers"] == [{"url": "/team/noria"}]
        assert "/v1/models" in document["paths"]
        missing = live.http.get("/team/noria/v1/model").json()["error"]["message"]
        assert missing == "there is no route /v1/model: did you mean GET /team/noria/v1/models?"
        start = httpx.get(f"{live.url}/team/noria")
        assert (start.status_code, start.headers["location"]) == (307, "/team/noria/")
        assert httpx.get(f"{live.url}/team/noria/v1/models").status_code == 401
        assert_page_loads(live, "/team/noria/")


def assert_page_loads(live: Live, path: str) -> None:
    """The page, and the files that it names relative to itself, as a browser finds them."""
    page = httpx.get(f"{live.url}{path}")
    names = {*re.findall(r'(?:src|href)="([^"#]+)"', page.text)} - {"openapi.json"}  # a link, which needs a key
    assert "page/app.js" in names
    for name in names:
        assert httpx.get(page.url.join(name)).status_code == 200
        assert str(page.url.join(name)).startswith(f"{live.url}{path}")


def test_without_a_prefix_the_document_names_no_server(live: Live) -> None:
    assert "servers" not in live.http.get("/openapi.json").json()
    assert live.http.get("/noria/v1/models").status_code == 404


@pytest.mark.parametrize("prefix", ["/v1", "/v1/noria", "/page", "/live"])
def test_a_prefix_that_begins_like_a_path_of_the_server_is_refused(prefix: str) -> None:
    with (
        pytest.raises(OptionError, match=f"--root-path {prefix} begins like the server's own path /"),
        running(root_path=prefix),
    ):
        pass


def test_the_log_has_the_client_of_a_believed_peer_only(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, logger="noria.access")
    fields = {"x-forwarded-for": "192.0.2.1"}
    with running(forwarded_allow_ips=("127.0.0.7",)) as live:
        for own in ("127.0.0.1", "127.0.0.7"):
            transport = httpx.HTTPTransport(local_address=own)
            with httpx.Client(base_url=live.url, transport=transport, headers=fields) as http:
                assert http.get("/v1/models").status_code == 200
    with running(uds=tmp_path / "noria.sock") as live:
        for headers in (fields, {}):
            assert live.http.get("/v1/models", headers=headers).status_code == 200
    lines = [json.loads(JsonFormatter().format(line)) for line in caplog.records if line.name == "noria.access"]
    assert [line.get("client") for line in lines] == ["127.0.0.1", "192.0.2.1", "192.0.2.1", None]
