"""Servers under the load of `noria bench`, each started for the run only; and Noria's engine under the same load.

Noria quantizes to int8, because the peer's file has 8 bits. `python -m benchmarks.peers.servers MODEL` measures the
engine: it runs a closed loop of the same requests without HTTP, and prints JSON.
"""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks import engine
from model.machine.child import die_with_parent
from model.step.runner import ModelRunner
from service.commands.own_server import embedded_server
from service.engine.messages import Submit

START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop: `requests` in all, `concurrency` at any time. The flags of `noria bench`."""

    requests: int
    concurrency: int
    input_tokens: int = 64
    output_tokens: int = 64

    @property
    def counted(self) -> str:
        """Which tokens are counted: those of the answers, or those of the prompts if answers have one token."""
        return "output" if self.output_tokens > 1 else "prompt"


LOADS = {
    "HTTP 1": Load(8, 1),
    "HTTP 8": Load(32, 8),
    "HTTP 32": Load(128, 32),
    "HTTP prompts": Load(24, 8, input_tokens=512, output_tokens=1),
}
FIRST_TOKEN = "HTTP 32: ms to first token, p50"


def measure_ours(model: str) -> dict[str, float]:
    with embedded_server(model, lambda stage, done: None, ["--quantize", "int8"]) as client:
        return _bench(str(client.base_url), client.headers["Authorization"].removeprefix("Bearer "))


def measure_llama(binary: Path, model: Path, threads: int) -> dict[str, float]:
    with _llama_server(binary, model, threads) as url:
        return _bench(url, "none")


def _bench(url: str, key: str) -> dict[str, float]:
    """`noria bench` once for each load: tokens/s, and the time to the first token."""
    found: dict[str, float] = {}
    for case, load in LOADS.items():
        report = _report(url, key, load)
        found[case] = report["throughput"][f"{load.counted}_tokens_per_second"]
        if FIRST_TOKEN.startswith(f"{case}:"):
            found[FIRST_TOKEN] = 1000 * report["latency_seconds"]["time_to_first_token"]["p50"]
    return found


def _report(url: str, key: str, load: Load) -> dict[str, Any]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(load).items()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "service", "bench", "--url", url, "--json", str(file), "--warmup", "2"]
        environment = os.environ | {"NORIA_BENCH_API_KEY": key}
        subprocess.run([*command, *flags], check=True, capture_output=True, text=True, env=environment)
        return json.loads(file.read_text())


@contextmanager
def _llama_server(binary: Path, model: Path, threads: int) -> Iterator[str]:
    slots = max(load.concurrency for load in LOADS.values())
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    flags = ["-m", model, "-t", threads, "--parallel", slots, "-c", 1024 * slots, "--port", port, "--no-ui"]
    process = subprocess.Popen(
        [str(binary), *map(str, flags)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    try:
        _wait(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"llama-server did not serve within {START_SECONDS:g} s")


def without_http(runner: ModelRunner, load: Load) -> float:
    """Tokens/s of the loop without HTTP: the scheduler gets the requests directly."""
    scheduler = engine.scheduler_for(runner)
    waiting = iter(range(load.requests))

    def submit(number: int) -> None:
        prompt = random.choices(range(100, runner.info.vocab_size - 100), k=load.input_tokens)
        scheduler.submit(Submit(number, prompt, engine.greedy(load.output_tokens)))

    began = time.perf_counter()
    for _ in range(load.concurrency):
        submit(next(waiting))
    for step in engine.steps(runner, scheduler):
        for update in step.updates:
            if update.finish and (number := next(waiting, None)) is not None:
                submit(number)
    tokens = load.output_tokens if load.counted == "output" else load.input_tokens
    return load.requests * tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    ours = engine.load(sys.argv[1], quantize="int8")
    without_http(ours, Load(2, 2))  # warms up
    print(json.dumps({case: without_http(ours, load) for case, load in LOADS.items()}))
