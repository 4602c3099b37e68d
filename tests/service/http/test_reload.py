"""SIGHUP: certificates, and the level of the log, are read again."""

import logging
import shutil
import ssl
from pathlib import Path

import pytest

from service.http.connection.limits import Places
from service.http.server import Server
from service.settings import Settings
from tests.service.live import begun, hurried, remaining, running

CERTIFICATES = Path(__file__).parent / "certificates"


def peer_name(context: ssl.SSLContext) -> str:
    """The name in the certificate that a server with this context shows to a new client."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cafile=None)
    trusting.check_hostname = False
    for path in CERTIFICATES.glob("*.pem"):
        trusting.load_verify_locations(path)
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    done = 0
    while done < 2:
        done = 0
        for side in (client, server):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
    certificate = client.getpeercert()
    assert certificate
    return certificate["subject"][0][0][1]  # type: ignore[index, return-value]


def test_new_connections_get_the_new_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "server.pem"
    shutil.copy(CERTIFICATES / "first.pem", path)
    settings = Settings("fake", ssl_certfile=path)

    async def drain() -> None: ...

    server = Server(
        lambda *_: None,  # type: ignore[arg-type]
        settings,
        drain=drain,
        reloads={},
        places=Places(1, 1),
        on_refused=print,
    )
    server.config.load()
    assert server.config.ssl is not None
    assert peer_name(server.config.ssl) == "first"
    shutil.copy(CERTIFICATES / "second.pem", path)
    assert peer_name(server.config.ssl) == "first"
    server.reload()
    assert peer_name(server.config.ssl) == "second"
    first, second = ((CERTIFICATES / f"{name}.pem").read_text() for name in ("first", "second"))
    key, certificate = second[: second.index("-----BEGIN CERT")], first[first.index("-----BEGIN CERT") :]
    for damaged in ("nonsense", key + certificate):  # the second has the key of another certificate
        path.write_text(damaged)
        caplog.clear()
        server.reload()
        assert "reload: no change of the TLS certificate: " in caplog.text
        assert caplog.messages[-1] == "reloaded all but the TLS certificate"
        assert peer_name(server.config.ssl) == "second"


def test_the_level_of_the_log_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A stream goes on meanwhile. A bad file changes nothing."""
    path = tmp_path / "level"
    path.write_text("warning\n")
    log = logging.getLogger("noria")
    before = log.level
    try:
        with running(model="slow", log_level_file=path) as live, begun(live, max_tokens=400) as lines:
            for text, level in (("debug\n", logging.DEBUG), ("loud", logging.DEBUG), ("ERROR", logging.ERROR)):
                path.write_text(text)
                live.server.reload()
                assert log.level == level
            with hurried():
                assert remaining(lines)[-1] == "[DONE]"
        assert "must hold one of debug, info, warning, error, got 'loud'" in caplog.text
    finally:
        log.setLevel(before)
