"""A real `noria serve` process on a free loopback port, with the embedded model by default."""

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import httpx
import openai

from tests.e2e.paced import PACE, slow
from tests.forks import Running, started
from tests.samples import sample
from tests.waiting import PATIENCE, children, eventually

MODEL = "smollm2-135m-instruct"
PORTS = iter(range(10_000 + os.getpid() * 61 % 20_000, 32_768))
"""Below those that the system gives to whoever asks for any (from 32768): no other test gets one before its server."""


class LiveServer:
    """The process, its address, and its state as a test reads it."""

    def __init__(self, process: Running, port: int, log: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        self.killed = False
        self._log = log
        self.pace = log.with_suffix(".pace")

    def kill(self) -> None:
        """End the process as no server can prevent it."""
        self.killed = True
        self.process.kill()

    def slow(self) -> AbstractContextManager[None]:
        """Until the block ends a server that is `paced` is slow."""
        return slow(self.pace)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def engine_pid(self) -> int:
        (engine,) = children(self.process.pid, "noria-engine")
        return engine

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics, or the sum of those that differ in their model only."""
        return sample(self.http.get("/metrics").text, name, **labels)

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return self.http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def wait_ready(self) -> None:
        eventually(self.ready, "the server is ready")

    def wait_idle(self) -> None:
        """Wait until nothing runs and nothing waits."""
        names = ("noria_requests_running", "noria_requests_waiting")
        eventually(lambda: not any(map(self.metric, names)), "the server is idle")


def free_port() -> int:
    """A port of the loopback on which nobody listens, and which this process has not given away before."""
    for port in PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


@contextmanager
def serving(*flags: str, paced: bool = False, **variables: str) -> Iterator[LiveServer]:
    """Run `noria serve FLAGS` until the block ends, then end it as an orchestrator would: SIGTERM, exit code 0.

    A server that the block has killed has ended already. One that is `paced` is slow where a test says so.

    Of the environment's NORIA_ variables it sees `variables` only.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "server.log").open("wb") as log:
        path = Path(log.name)
        program = ("tests.e2e.paced",) if paced else ("service", "serve")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NORIA_")}
        environment |= {"OMP_NUM_THREADS": "1"} | variables
        environment |= {PACE: str(path.with_suffix(".pace"))}
        with started([*program, *flags, "--port", str(port)], environment, log) as process:
            server = LiveServer(process, port, path)
            try:
                server.wait_ready()
                yield server
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == (-signal.SIGKILL if server.killed else 0), server.log
            finally:
                server.http.close()
                server.openai.close()
                process.kill()
