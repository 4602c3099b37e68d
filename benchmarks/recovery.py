"""Time from the death of the engine until an answer: `python -m benchmarks.recovery [MODEL] [--busy 2]`.

It kills the engine of its own server again and again. `--busy` programs that only compute run beside it. It also prints
the memory of the engine and of the zygote.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from model.checkpoint.resolve import EMBEDDED
from model.machine.child import start_python
from service.http.listening import listen

REST_SECONDS = 10.0
"""Between two kills."""
POLL_SECONDS = 0.005


@contextmanager
def busy(n: int) -> Iterator[None]:
    """Programs that compute without end beside what is measured."""
    with ExitStack() as stack:
        for _ in range(n):
            program = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(program.kill)
        yield


@contextmanager
def serving(model: str, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """A server on a free port, and a client of it."""
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    process = start_python(
        "service", "serve", model, "--port", str(port), "--log-level", "error", *flags, stderr=subprocess.DEVNULL
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            wait_ready(client)
            yield process, client
    finally:
        process.terminate()
        process.wait()


def ready(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").is_success
    except httpx.TransportError:  # it does not listen yet
        return False


def wait_ready(client: httpx.Client) -> None:
    while not ready(client):
        time.sleep(POLL_SECONDS)


def engines(server: int, name: str) -> list[int]:
    """Process ids of the children of a server with this name."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == name]


def recovery(server: int, client: httpx.Client) -> tuple[float, float]:
    """Seconds from SIGKILL until /ready answers 200, and until a request for one token is answered."""
    (engine,) = engines(server, "noria-engine")
    os.kill(engine, signal.SIGKILL)
    began = time.perf_counter()
    while ready(client) and engine in engines(server, "noria-engine"):
        time.sleep(POLL_SECONDS)
    wait_ready(client)
    is_ready = time.perf_counter() - began
    client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 1}).raise_for_status()
    return is_ready, time.perf_counter() - began


def memory(pid: int) -> str:
    """Resident memory of a process, and the part that it shares with no other, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return f"{kib['Rss'] // 1024} MiB, {(kib['Private_Clean'] + kib['Private_Dirty']) // 1024} of them its own"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--busy", type=int, default=0, help="programs that compute beside the service")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    console, table = Console(), Table("ready: median", "slowest", "first answer: median", "slowest")
    with serving(args.model) as (process, client), busy(args.busy):
        times = []
        for _ in range(args.runs):
            time.sleep(REST_SECONDS)
            times.append(recovery(process.pid, client))
        for name in ("noria-engine", "noria-zygote"):
            for pid in engines(process.pid, name):
                console.print(f"{name}: {memory(pid)}")
    columns = ((statistics.median(column), max(column)) for column in zip(*times, strict=True))
    table.add_row(*(f"{seconds:.2f} s" for pair in columns for seconds in pair))
    console.print(table)


if __name__ == "__main__":
    main()
