"""Real reverse proxies, with the configurations of `deploy/` before servers of a test."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import free_port
from tests.waiting import PATIENCE, eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
ADDRESSES = ("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002")
"""In the configurations: two servers of a model, and where a file has another model, one of that."""
NJS = Path("/usr/lib/nginx/modules/ngx_http_js_module.so")
NGINX = """
{modules}
user root;
daemon off;
pid {folder}/pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/noria.conf;
}}
"""
CLIENT = "127.0.0.5"
"""The client's address; that of the proxy is 127.0.0.1, which the server believes about clients."""


def configured(path: str, port: int, servers: Sequence[str]) -> str:
    """A configuration for these addresses in place of its own."""
    text = (DEPLOY / path).read_text()
    assert "8080" in text
    text = text.replace("8080", str(port))
    for own, other in zip(ADDRESSES, servers, strict=False):
        assert own in text
        text = text.replace(own, other)
    return text


def nginx(folder: Path, text: str) -> list[str]:
    modules = ""
    if "js_import" in text:
        shutil.copy(DEPLOY / "nginx/noria.js", folder)
        if not NJS.exists():
            pytest.skip("njs is not installed (scripts/setup-proxies, or on Debian: apt install libnginx-mod-http-js)")
        modules = f"load_module {NJS};"
    (folder / "noria.conf").write_text(text)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, modules=modules))
    return ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, text: str) -> list[str]:
    (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + text)
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


def haproxy(folder: Path, text: str) -> list[str]:
    (folder / "haproxy.cfg").write_text(text)
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


COMMANDS = {"nginx": nginx, "caddy": caddy, "haproxy": haproxy}
FIRST_OF_TWO = ("nginx/noria.conf", "caddy/Caddyfile")
"""The second server gets requests while the first one cannot serve them."""
REPLICAS = ("nginx/replicas.conf", "haproxy/haproxy.cfg")
"""All servers share the requests, and a conversation stays with one."""


@contextmanager
def proxied(
    path: str, folder: Path, servers: Sequence[str], edit: Callable[[str], str] = str
) -> Iterator[httpx.Client]:
    """A client of the proxy with the configuration `path`, as `edit` changes it, before `servers`, each HOST:PORT."""
    name = path.partition("/")[0]
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed (scripts/setup-proxies, or on Debian: apt install {name})")
    port = free_port()
    command = COMMANDS[name](folder, edit(configured(path, port, servers)))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)})
    try:
        transport = httpx.HTTPTransport(local_address=CLIENT)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, transport=transport) as http:
            eventually(lambda: process.poll() is not None or answers(http), "the proxy answers")
            assert process.poll() is None, (folder / "log").read_text()
            yield http
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False
