"""Time from the command `noria serve` until the service is ready, with what happens on the way, in milliseconds.

Each run starts a server of its own and asks it for one token twice: the first answer must be as fast as the second.
The first run of each tree finds nothing compiled or cached and does not count. Milestones:

- service: the service answers /live
- engine: the engine process is there, which has imported everything
- other names: stages of the load, as the service logs them
- ready: /ready answers 200

    python -m benchmarks.start --runs 5 --against main
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from statistics import median

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.kernels import ROOT, worktree
from model.checkpoint.resolve import EMBEDDED
from service.http.listening import listen

POLL_SECONDS = 0.002
ENGINE = "noria-engine"
"""What the system calls the engine process. Older trees gave it that name when its load began."""

Milestones = dict[str, float]
"""Milliseconds from the start of the command, by name."""


@contextmanager
def _started(tree: Path, model: str, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-m", "service", "serve", model, "--port", str(port), "--log-format", "json"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as process:
        try:
            yield process
        finally:
            process.kill()  # the engine dies with it


def _watch_engine(server: int, note: threading.Event, found: Milestones, began: float) -> None:
    """Note when there is an engine process."""
    children = Path(f"/proc/{server}/task/{server}/children")
    while not note.is_set() and "engine" not in found:
        with suppress(OSError):  # no child yet, or one that has ended
            names = [Path(f"/proc/{child}/comm").read_text().strip() for child in children.read_text().split()]
            if ENGINE in names:
                found["engine"] = 1000 * (time.time() - began)
        time.sleep(POLL_SECONDS)


def _watch_service(client: httpx.Client, found: Milestones, began: float) -> None:
    """Note when the service answers. Its socket listens before."""
    while "service" not in found:
        with suppress(httpx.TransportError):
            client.get("/live")
            found["service"] = 1000 * (time.time() - began)
        time.sleep(POLL_SECONDS)


def _read_log(process: subprocess.Popen[str], found: Milestones, began: float) -> None:
    """Note each stage of the load, up to the end of the load. Raises RuntimeError if the server ends before."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        entry = json.loads(line) if line.startswith("{") else {}
        if entry.get("message") == "ready":
            return
        if entry.get("message") == "loading":
            found.setdefault(entry["stage"], 1000 * (datetime.fromisoformat(entry["time"]).timestamp() - began))
    raise RuntimeError(f"the server ended: {''.join(lines)}")


def start(tree: Path, model: str) -> Milestones:
    """The milestones of one start, and the milliseconds of the first two answers."""
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    found: Milestones = {}
    ended, began = threading.Event(), time.time()
    address = f"http://127.0.0.1:{port}"
    with (
        _started(tree, model, port) as process,
        httpx.Client(base_url=address, timeout=60, trust_env=False) as client,
    ):
        watchers = [
            threading.Thread(target=_watch_engine, args=(process.pid, ended, found, began), daemon=True),
            threading.Thread(target=_watch_service, args=(client, found, began), daemon=True),
        ]
        for thread in watchers:
            thread.start()
        try:
            _read_log(process, found, began)
        finally:
            ended.set()
        while not client.get("/ready").is_success:
            time.sleep(POLL_SECONDS)
        found["ready"] = 1000 * (time.time() - began)
        return found | {name: _answer(client) for name in ("first answer takes", "second answer takes")}


def _answer(client: httpx.Client) -> float:
    began = time.perf_counter()
    body = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 1}
    client.post("/v1/chat/completions", json=body).raise_for_status()
    return 1000 * (time.perf_counter() - began)


def _tree(against: str, stack: ExitStack) -> Path:
    """The sources to compare with: a folder, or a revision."""
    folder = Path(against)
    return stack.enter_context(nullcontext(folder) if folder.is_dir() else worktree(against))


def _table(found: list[list[Milestones]], against: str | None) -> Table:
    table = Table("milestone, ms", "median", "slowest", *([f"{against}: median", "slowest"] if against else []))
    for name in sorted(found[0][0], key=lambda name: (name.endswith("takes"), found[0][0][name])):
        columns = [[run[name] for run in runs if name in run] for runs in found]
        cells = [f"{pick(times):.0f}" if times else "-" for times in columns for pick in (median, max)]
        table.add_row(name, *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--against", metavar="REV", help="git revision, or a folder with sources, to compare in turns")
    args = parser.parse_args()
    with ExitStack() as stack:
        trees = [ROOT] + ([_tree(args.against, stack)] if args.against else [])
        for tree in trees:
            start(tree, args.model)
        rounds = [[start(tree, args.model) for tree in trees] for _ in range(args.runs)]
    Console().print(_table([list(runs) for runs in zip(*rounds, strict=True)], args.against))


if __name__ == "__main__":
    main()
