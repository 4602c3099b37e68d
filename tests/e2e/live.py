"""A real `noria serve` process on a free loopback port, with the embedded model unless told otherwise."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai

MODEL = "smollm2-135m-instruct"


class LiveServer:
    """The process, its address, and what a test wants to know of it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def engine_pid(self) -> int:
        """The engine: the server's only child process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 1, children
        return int(children[0])

    def metric(self, name: str, **labels: str) -> float:
        """One sample of /metrics."""
        wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        sample = f"{name}{{{wanted}}}" if wanted else name
        found = re.search(rf"^{re.escape(sample)} (\S+)$", self.http.get("/metrics").text, re.MULTILINE)
        assert found, f"no sample {sample}"
        return float(found[1])

    def wait_ready(self, seconds: float = 60) -> float:
        """Wait until /ready says so; returns the seconds it took."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            assert self.process.poll() is None, self.log
            try:
                if self.http.get("/ready").status_code == 200:
                    return time.monotonic() - started
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"not ready after {seconds} s: {self.log}")

    def wait_idle(self, seconds: float = 10) -> None:
        """Wait until nothing runs and no page is held."""
        deadline = time.monotonic() + seconds
        while self.metric("noria_requests_running") or self.metric("noria_requests_waiting"):
            assert time.monotonic() < deadline, "requests are still running"
            time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextmanager
def serving(*flags: str, **variables: str) -> Iterator[LiveServer]:
    """Run `noria serve FLAGS` until the block ends, then end it as an orchestrator would: SIGTERM, exit code 0.

    Of the environment's NORIA_ variables it sees `variables` only.
    """
    port = free_port()
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        command = [sys.executable, "-m", "service", "serve", *flags, "--port", str(port)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NORIA_")} | variables
        with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment) as process:
            server = LiveServer(process, port, Path(log.name))
            try:
                server.wait_ready()
                yield server
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=40) == 0, server.log
            finally:
                server.http.close()
                server.openai.close()
                process.kill()
