"""A real server for a real client: `server` is its address. The standard library and pytest only."""

import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """`noria serve` with the embedded model and the key "secret" on a free loopback port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    python = ROOT / ".venv" / "bin" / "python"
    command = [str(python), "-m", "service", "serve", "--port", str(port), "--api-key", "secret"]
    with (
        tempfile.NamedTemporaryFile(suffix=".log") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _wait(f"http://127.0.0.1:{port}", process, Path(log.name))
            yield f"http://127.0.0.1:{port}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0, Path(log.name).read_text()
        finally:
            process.kill()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"the server is not ready: {log.read_text()}")
