"""A local server that speaks the hub's file API. Its clients read their endpoint once, when they start."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

SHA = "0123456789abcdef0123456789abcdef01234567"

Repos = Mapping[str, Mapping[str, bytes]]
"""The files of each repository."""


@dataclass
class Hub:
    """The address, and the names of the files that were fetched.

    `gated` repositories need consent. Files in `claimed` are said to have this size.
    """

    url: str
    repos: Repos = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    gated: set[str] = field(default_factory=set)
    claimed: dict[str, int] = field(default_factory=dict)

    def variables(self, home: Path) -> dict[str, str]:
        """Environment variables of a client with this home."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "no_proxy": "*"}


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._send(*self._answer(), body=False)

    def do_GET(self) -> None:
        status, data, headers = self._answer()
        if "ETag" in headers:
            self.server.hub.fetched.append(self.path.rpartition("/")[2])
        self._send(status, data, headers, body=True)

    def _answer(self) -> tuple[int, bytes, dict[str, str]]:
        """Model info by revision, the file tree of a commit, or a file of it."""
        hub = self.server.hub
        path = self.path.partition("?")[0].removeprefix("/api/models").strip("/")
        path = path if path.count("/") > 1 else f"{path}/revision/main"
        organization, repository, action, revision, *file = path.split("/", 4)
        name = f"{organization}/{repository}"
        if name not in hub.repos:
            return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        if revision not in ("main", SHA):
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        files = hub.repos[name]
        if action == "resolve":
            if name in hub.gated:
                return 403, b"{}", {"X-Error-Code": "GatedRepo"}
            data = files[unquote(file[0])]
            return 200, data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        if action == "tree":
            tree = [{"type": "file", "path": path, "size": len(data), "oid": path} for path, data in files.items()]
            return 200, json.dumps(tree).encode(), {}
        siblings = [{"rfilename": path} for path in files]
        return 200, json.dumps({"id": name, "sha": SHA, "siblings": siblings}).encode(), {}

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
        first = 0
        if asked := self.headers.get("Range"):
            first = int(asked.removeprefix("bytes=").partition("-")[0])
            status, headers = 206, headers | {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
        data, file = data[first:], self.path.rpartition("/")[2]
        length = len(data) if body else self.server.hub.claimed.get(file, len(data))
        self.send_response(status)
        for key, value in ({"X-Repo-Commit": SHA, "Content-Length": str(length)} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


class Server(ThreadingHTTPServer):
    hub: Hub

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no error."""


@contextmanager
def serving(repos: Repos) -> Iterator[Hub]:
    """A hub with these repositories, until the block ends."""
    server = Server(("127.0.0.1", 0), Handler)
    server.hub = Hub(f"http://127.0.0.1:{server.server_port}", repos)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
