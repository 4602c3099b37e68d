"""A Ray cluster of this process, with Noria's replicas, and the streams that tests send through its proxy."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import ray
from ray import serve

from deploy.ray.app import build
from deploy.ray.arguments import Arguments
from tests.e2e.paced import PACE, slow
from tests.e2e.server import MODEL, free_port
from tests.samples import sample
from tests.waiting import PATIENCE, ended, eventually

APP = "noria"
SESSION_HEADER = "x-conversation-id"
"""The header of a conversation, as nginx and HAProxy have it in `deploy/`. Ray's own default is another one."""


class Cluster:
    """The proxy's address, and the replicas as processes of this machine. `replicas` are those that serve."""

    def __init__(self, port: int, metrics_port: int, pace: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        self._metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
        self._pace = pace

    def slow(self) -> AbstractContextManager[None]:
        """Until the block ends answers take long, whatever the machine."""
        return slow(self._pace)

    @contextmanager
    def deployed(self, **arguments: Any) -> Iterator["Cluster"]:
        """Serve the embedded model, with one thread in each replica, until the block ends."""
        serve.run(build(Arguments(**arguments)), name=APP, route_prefix="/")
        yield self
        serve.delete(APP)

    @property
    def replicas(self) -> list[int]:
        """Process ids of the replicas, also of those that start or drain."""
        found = [
            pid for pid in _descendants(os.getpid()) if _said(pid, "cmdline").startswith(f"ray::ServeReplica:{APP}")
        ]
        return sorted(pid for pid in found if not ended(pid))

    @property
    def states(self) -> dict[str, int]:
        """Number of replicas by their state, such as RUNNING."""
        (deployment,) = serve.status().applications[APP].deployments.values()
        return dict(deployment.replica_states)

    def wait_running(self, n_replicas: int) -> None:
        eventually(lambda: self.states == {"RUNNING": n_replicas}, f"{n_replicas} replicas run")
        eventually(lambda: len(self.replicas) == n_replicas, "those that were stopped have ended")

    def metrics(self, name: str, **labels: str) -> dict[str, float]:
        """A sample of each replica that runs, from what it says now at /metrics, by the replica's id."""
        found: dict[str, float] = {}
        while len(found) < self.states["RUNNING"]:  # the proxy chooses who answers
            page = httpx.get(f"{self.url}/metrics", timeout=PATIENCE)
            found[page.headers["x-noria-replica"]] = sample(page.text, name, **labels)
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a sample over the replicas that run."""
        return sum(self.metrics(name, **labels).values())

    def replica_of(self, session: str) -> str:
        """The id of the replica that answers a request of a session."""
        answer = httpx.get(f"{self.url}/live", headers={SESSION_HEADER: session}, timeout=PATIENCE)
        return answer.headers["x-noria-replica"]

    def exported(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels over all replicas, as Ray exports it: some seconds old."""
        text = httpx.get(self._metrics_url, timeout=PATIENCE).text
        lines = [line for line in text.splitlines() if line.startswith(f"ray_{name}{{")]
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))

    def stream(self, prompt: str, max_tokens: int, session: str | None = None) -> "Stream":
        """A greedy chat that has been sent."""
        stream = Stream(self.openai, prompt, max_tokens, {SESSION_HEADER: session} if session else {})
        stream.start()
        return stream


class Stream(threading.Thread):
    """One streamed chat: its text so far, then why it finished, or the error that ended it."""

    def __init__(self, client: openai.OpenAI, prompt: str, max_tokens: int, headers: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.text = ""
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.is_left = False
        self._client = client
        self._order: Any = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
        self._order |= {"extra_body": {"ignore_eos": True}, "extra_headers": headers}

    def run(self) -> None:
        """Read the stream to its end, or until `is_left`; then close the connection."""
        try:
            with self._client.chat.completions.create(model=MODEL, temperature=0, stream=True, **self._order) as chunks:
                for chunk in chunks:
                    if self.is_left:
                        break
                    self.text += chunk.choices[0].delta.content or ""
                    self.finish_reason = chunk.choices[0].finish_reason or self.finish_reason
        except (openai.APIError, httpx.TransportError) as error:
            self.error = error

    @property
    def whole(self) -> bool:
        """Whether the answer is complete."""
        return self.error is None and self.finish_reason == "length"

    def begun(self) -> "Stream":
        """The stream after its first text, or after an error."""
        eventually(lambda: self.text or self.error, "the stream begins")
        return self

    def ended(self) -> "Stream":
        self.join(2 * PATIENCE)
        assert not self.is_alive(), "the stream neither ends nor fails"
        return self


def engines(replica: int) -> list[int]:
    """Process ids of a replica's engine, and of one that starts in its place. The zygote has the same command."""
    return [pid for pid in _descendants(replica) if not ended(pid) and _said(pid, "comm") == "noria-engine"]


def _descendants(pid: int) -> list[int]:
    """Process ids of all children, and of theirs."""
    parents, found = dict(_parents()), [pid]
    for parent in found:
        found += [child for child in parents if parents[child] == parent]
    return found[1:]


def _parents() -> Iterator[tuple[int, int]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue


def _said(pid: int, file: str) -> str:
    """What a file of a process says; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text().strip()
    except OSError:
        return ""


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster on this machine, without dashboard, usage reports and tokens. Its sockets need a short path."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_SERVE_SESSION_ID_HEADER_KEY": SESSION_HEADER,
        "RAY_METRICS_REPORT_INTERVAL_MS": "1000",
        "PYTHONPATH": str(Path(__file__).parents[2]),  # of the workers, which need `tests` for their hook
    }
    port, metrics_port, before = free_port(), free_port(), _descendants(os.getpid())
    with tempfile.TemporaryDirectory(prefix="nr", dir="/tmp") as directory:
        pace = Path(directory) / "pace"
        os.environ[PACE] = str(pace)
        try:
            ray.init(
                num_cpus=4,
                object_store_memory=100 * 2**20,
                include_dashboard=False,
                _temp_dir=directory,
                _metrics_export_port=metrics_port,
                runtime_env={"worker_process_setup_hook": "tests.e2e.paced.install"},
            )
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            yield Cluster(port, metrics_port, pace)
        finally:
            started = [pid for pid in _descendants(os.getpid()) if pid not in before]
            if ray.is_initialized():
                serve.shutdown()
            ray.shutdown()
            eventually(lambda: all(map(ended, started)), "no process of Ray is left")
