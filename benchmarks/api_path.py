"""CPU time of the service process for each streamed token: `python -m benchmarks.api_path [--profile]`.

The service is the real one, with the embedded model's tokenizer, in its own process. A fake engine repeats the prompt,
with --rate steps a second. The clients are plain sockets of this process. The CPU time of engine and clients does not
count. One frame for each token means that no client was slower than the server. The cost includes that of the requests;
with more --tokens its share is smaller.
"""

import argparse
import cProfile
import json
import os
import pstats
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from model.batch import PoolSpec, RunnerInfo, SliceOutput, StepBatch, StepOutput

PROMPT = 3 * "The water wheel turns in the river, and each bucket rides up full, empties, and comes round again. "
BODIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "completions": ("/v1/completions", "max_tokens", {"prompt": PROMPT}),
    "chat": ("/v1/chat/completions", "max_tokens", {"messages": [{"role": "user", "content": PROMPT}]}),
    "responses": ("/v1/responses", "max_output_tokens", {"input": PROMPT}),
}
"""Endpoint -> its path, the name of its token limit, and its body."""
N_CONTROL = 17
"""The embedded model's control tokens have the ids below this; one of them would end the answer."""
RATE = "STEPS_A_SECOND"
"""The environment variable with the speed of the engine process."""


class Repeater:
    """A model that repeats its prompt again and again, with another token in place of control tokens."""

    grammar_restarts, waits_for_grammars, pages = 0, False, None

    def __init__(self, step_seconds: float) -> None:
        self.info = RunnerInfo(32, (PoolSpec(None, 16384),), 8192, 49152, 64, 64, 512, {"device": "none"})
        self._step_seconds = step_seconds
        self._due = 0.0

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        self._due = max(self._due + self._step_seconds, time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))
        output = StepOutput(
            tuple(
                SliceOutput((max(N_CONTROL, item.tokens[-item.n_prompt]),) if item.samples else ())
                for item in batch.slices
            )
        )
        return lambda: output

    def idle(self) -> bool:
        return False

    def watch(self, lost: Callable[[str], None]) -> None:
        pass

    def close(self) -> None:
        pass


def create(progress: Callable[[str, float], None], **options: object) -> Repeater:
    """The runner that the engine process loads."""
    return Repeater(1 / float(os.environ[RATE]))


def serve(profile: bool) -> None:
    """Run the service as `noria serve` does, except for its engine, and print its port."""
    from service import logs
    from service.access.keys import Keys
    from service.commands.server import create_server
    from service.engine.client import EngineClient
    from service.engine.supervision.process import EngineProcess
    from service.engine.supervision.zygote import Zygote
    from service.hosting.entries import ModelEntry, read_entries
    from service.http.listening import listen
    from service.observe.metrics import Metrics
    from service.settings import Settings

    settings = Settings()
    with listen(settings.address[0], 0) as sock:
        entries, metrics, zygote = read_entries(settings), Metrics(), Zygote()

        def client_of(entry: ModelEntry) -> EngineClient:
            of_model = metrics.of_model(entry.name)
            return EngineClient(
                lambda: EngineProcess("benchmarks.api_path:create", zygote), on_report=of_model.observe_report
            )

        logs.configure("json", "info")
        print(sock.getsockname()[1], flush=True)
        server = create_server(
            settings, entries, client_of, metrics, sock, Keys(settings.api_keys, settings.api_key_file)
        )
        if not profile:
            server.run([sock])
            return
        profiler = cProfile.Profile(time.thread_time)
        profiler.runcall(server.run, [sock])
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


@contextmanager
def serving(rate: float, profile: bool) -> Iterator[tuple[int, int]]:
    """The port and the process id of a ready service."""
    command = [sys.executable, "-m", "benchmarks.api_path", "--serve", *(["--profile"] if profile else [])]
    environment = os.environ | {RATE: str(rate)}
    log = subprocess.DEVNULL  # a line for each request
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=log) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            while not ready(port):
                time.sleep(0.1)
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            print(process.stdout.read(), end="")


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready"):
            return True
    except urllib.error.HTTPError:
        return False


def stream(port: int, path: str, body: dict[str, object], n_clients: int) -> int:
    """Send the same streamed request on `n_clients` connections at once, and read the answers; returns the frames."""
    content = json.dumps(body | {"stream": True, "temperature": 0}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(content)}\r\n\r\n"
    waiting = selectors.DefaultSelector()
    for _ in range(n_clients):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(head.encode() + content)
        waiting.register(sock, selectors.EVENT_READ)
    frames = 0
    while waiting.get_map():
        for key, _ in waiting.select():
            data = key.fileobj.recv(65536)  # type: ignore[union-attr]
            assert data.startswith(b"HTTP/1.1 200") or not data.startswith(b"HTTP"), data
            frames += data.count(b"data: {")
            if not data or data.endswith(b"0\r\n\r\n"):
                waiting.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
    return frames


def cpu_seconds(pid: int) -> float:
    """The CPU time of another process, user and system, in nanoseconds (Linux; see clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


def measure(port: int, pid: int, endpoint: str, n_clients: int, n_tokens: int) -> tuple[float, float]:
    """Microseconds of CPU time of the process `pid` for each token, and frames for each token."""
    path, limit, body = BODIES[endpoint]
    before = cpu_seconds(pid)
    frames = stream(port, path, body | {limit: n_tokens}, n_clients)
    total = n_clients * n_tokens
    return 1e6 * (cpu_seconds(pid) - before) / total, frames / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each answer")
    parser.add_argument("--rate", type=float, default=50, help="steps a second of the engine")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="print where the service process spends its time")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.profile)
        return
    with serving(args.rate, args.profile) as (port, pid):
        for endpoint in BODIES:
            measure(port, pid, endpoint, 8, 16)  # warms up
        print(f"{'endpoint':12} clients  us/token  frames/token")
        for endpoint in BODIES:
            for n in args.clients:
                found = [measure(port, pid, endpoint, n, args.tokens) for _ in range(args.repeat)]
                cost, frames = map(statistics.median, zip(*found, strict=True))
                print(f"{endpoint:12} {n:7} {cost:9.0f} {frames:13.3f}", flush=True)


if __name__ == "__main__":
    main()
