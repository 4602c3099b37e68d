"""Downloads from a local server that speaks the hub's file API, in a child: the client reads its endpoint once."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from model.checkpoint.resolve import ignore_progress, resolve_again

SHA = "0123456789abcdef0123456789abcdef01234567"
CONFIG = b'{"model_type": "llama"}'
REPOS = {  # every file differs: the client downloads equal contents once
    "org/both": {
        "config.json": CONFIG,
        "params.json": b"{}",
        "tokenizer.json": b'{"model": {}}',
        "model.safetensors": bytes(300_000),
        "consolidated.safetensors": bytes(300_000),
        "pytorch_model.bin": bytes(1000),
        "README.md": b"# hello",
        "original/consolidated.00.pth": bytes(1000),
    },
    "org/native": {
        "params.json": b'{"dim": 8}',
        "tokenizer.model.v3": b"spm",
        "consolidated-00001-of-00002.safetensors": bytes(1000),
        "consolidated-00002-of-00002.safetensors": bytes(2000),
    },
    "org/pickled": {"config.json": CONFIG, "pytorch_model.bin": bytes(1000)},
}


@dataclass
class Hub:
    url: str
    fetched: list[str] = field(default_factory=list)


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
        path = self.path.partition("?")[0].removeprefix("/api/models").strip("/")
        organization, repository, action, revision, *file = path.split("/", 4)
        name = f"{organization}/{repository}"
        if name not in REPOS:
            return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        if revision not in ("main", SHA):
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        files = REPOS[name]
        if action == "resolve":
            data = files[file[0]]
            return 200, data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        if action == "tree":
            tree = [{"type": "file", "path": path, "size": len(data), "oid": path} for path, data in files.items()]
            return 200, json.dumps(tree).encode(), {}
        siblings = [{"rfilename": path} for path in files]
        return 200, json.dumps({"id": name, "sha": SHA, "siblings": siblings}).encode(), {}

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(status)
        for key, value in ({"X-Repo-Commit": SHA, "Content-Length": str(len(data))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


class Server(ThreadingHTTPServer):
    hub: Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Server(("127.0.0.1", 0), Handler)
    server.hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.hub
    server.shutdown()
    thread.join()
    server.server_close()


CHILD = """
import json, sys
from pathlib import Path
from model.checkpoint.resolve import resolve
from model.errors import ModelError
answers = []
for name, revision, *rest in json.loads(sys.argv[1]):
    stages = []
    try:
        note = lambda stage, fraction: stages.append((stage, fraction))
        directory = resolve(name, revision=revision, progress=note, weights=not rest)
        answers.append({"files": sorted(path.name for path in directory.rglob("*")), "stages": stages})
    except ModelError as error:
        answers.append({"error": str(error)})
print(json.dumps(answers))
"""


def _resolve(hub: Hub, home: Path, *models: tuple[str | None, ...]) -> list[dict]:
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "no_proxy": "*"}
    command = [sys.executable, "-c", CHILD, json.dumps(models)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_fetches_what_serving_needs_and_nothing_twice(hub: Hub, tmp_path: Path) -> None:
    both, native, again = _resolve(hub, tmp_path, ("org/both", None), ("org/native", None), ("org/both", None))
    assert both["files"] == ["config.json", "model.safetensors", "params.json", "tokenizer.json"]
    assert native["files"] == [
        "consolidated-00001-of-00002.safetensors",
        "consolidated-00002-of-00002.safetensors",
        "params.json",
        "tokenizer.model.v3",
    ]
    assert again["files"] == both["files"]
    assert sorted(hub.fetched) == sorted(both["files"] + native["files"])
    fractions = [fraction for stage, fraction in both["stages"] if stage == "downloading"]
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0
    assert any(fraction == 1.0 for fraction in fractions[1:-1])  # the bytes were counted


def test_a_plan_needs_the_configuration_alone(hub: Hub, tmp_path: Path) -> None:
    both, native = _resolve(hub, tmp_path, ("org/both", None, "config"), ("org/native", None, "config"))
    assert (both["files"], native["files"]) == (["config.json"], ["params.json"])
    assert hub.fetched == ["config.json", "params.json"]


def test_what_is_not_there_is_one_line(hub: Hub, tmp_path: Path) -> None:
    models = (("org/absent", None), ("org/both", "no-such-branch"), ("org/pickled", None))
    absent, revision, pickled = (answer["error"] for answer in _resolve(hub, tmp_path, *models))
    assert absent == "org/absent is no local path and no model on the hub; for a private one set HF_TOKEN"
    assert revision == "org/both has no revision 'no-such-branch' on the hub; check --revision"
    assert pickled == "org/pickled has no weights in safetensors format on the hub; choose another model"


def test_no_connection_is_one_line_and_an_earlier_download_still_serves(hub: Hub, tmp_path: Path) -> None:
    (first,) = _resolve(hub, tmp_path, ("org/native", None))
    unreachable = Hub("http://127.0.0.1:9")
    later, error = _resolve(unreachable, tmp_path, ("org/native", None), ("org/both", None))
    assert later["files"] == first["files"]
    assert error["error"].startswith("org/both cannot be downloaded from the hub: ")
    assert "\n" not in error["error"]


def test_another_engine_gets_the_same_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is not asked while the download is complete: its newest revision may be another model."""
    asked = []

    def download(name: str, *, revision: str | None, **options: object) -> Path:
        asked.append((name, revision))
        (tmp_path / "0123abc/model.safetensors").touch()
        return tmp_path / "0123abc"

    monkeypatch.setattr("model.checkpoint.hub.download", download)
    directory = tmp_path / "0123abc"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    for _ in range(2):
        assert resolve_again("org/name", directory, progress=ignore_progress) == directory
    assert asked == [("org/name", "0123abc")]
