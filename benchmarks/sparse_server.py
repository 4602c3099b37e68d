"""A sparse model served over HTTP on a CPU: `python -m benchmarks.sparse_server [--against REV] [--streams 8]`.

The model has Mixtral's shape (8 experts of which 2 serve a token) in 500 MB of random bfloat16 weights, with the
tokenizer of Mistral 7B v0.3. `noria serve` serves it, and `noria bench` sends requests. With --against, servers of both
revisions take turns. It prints medians over the rounds. Memory is that of the engine process at its peak, with pages of
the file, and what was its own (anonymous) after the load.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import mistral_common
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.kernels import ROOT, worktree
from benchmarks.random_weights import save
from model.config import ModelConfig
from service.commands.endpoint import headers
from service.http.listening import listen

TOKENIZER = "mistral_instruct_tokenizer_240323.model.v3"
LAYERS = 10
CONFIG = ModelConfig(
    family="mixtral",
    dim=512,
    n_layers=LAYERS,
    n_heads=8,
    n_kv_heads=2,
    head_dim=64,
    hidden_dim=1792,
    vocab_size=32768,
    norm_eps=1e-5,
    rope_theta=1e6,
    max_position=32768,
    windows=(None,) * LAYERS,
    n_experts=8,
    n_experts_per_token=2,
)
KEY = "benchmark"


def write(directory: Path) -> None:
    """The model's directory."""
    save(CONFIG, torch.device("cpu"), directory)
    data = Path(mistral_common.__file__).parent / "data"
    shutil.copy(data / TOKENIZER, directory / "tokenizer.model.v3")


@contextmanager
def server(tree: Path, model: Path, flags: Sequence[str]) -> Iterator[tuple[str, int]]:
    """`noria serve` of a source tree: its address and the id of its engine process."""
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "service", "serve", str(model), "--port", str(port), "--no-spare-engine", *flags]
    environment = os.environ | {"NORIA_API_KEY": KEY, "NORIA_LOG_LEVEL": "error"}
    process = subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(process, url)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        engine = next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "noria-engine")
        yield url, engine
    finally:
        process.terminate()
        process.wait()


def wait_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    while process.poll() is None:
        try:
            if httpx.get(f"{url}/ready", headers=headers(KEY)).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"the server ended with exit code {process.returncode}")


def memory(pid: int) -> dict[str, float]:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {f"MiB {name}": int(lines[key].split()[0]) / 1024 for name, key in (("peak", "VmHWM"), ("own", "RssAnon"))}


def load(url: str, streams: int) -> dict[str, float]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        flags = f"--concurrency {streams} --requests {4 * streams} --input-tokens 64 --output-tokens 64 --seed 1"
        command = [sys.executable, "-m", "service", "bench", "--url", url, "--json", file.name, "--warmup", "2"]
        environment = os.environ | {"NORIA_BENCH_API_KEY": KEY}
        subprocess.run([*command, *flags.split()], check=True, capture_output=True, cwd=ROOT, env=environment)
        report = json.loads(Path(file.name).read_text())
    latency = report["latency_seconds"]
    return {
        "tokens/s": report["throughput"]["output_tokens_per_second"],
        "ms to first token, p50": 1000 * latency["time_to_first_token"]["p50"],
        "ms to first token, p99": 1000 * latency["time_to_first_token"]["p99"],
        "ms between tokens, p50": 1000 * latency["inter_token"]["p50"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REV", help="git revision to compare with")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flags", default="", help="flags of noria serve")
    args = parser.parse_args()
    with ExitStack() as stack:
        model = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write(model)
        trees = [ROOT] + ([stack.enter_context(worktree(args.against))] if args.against else [])
        found: list[list[dict[str, float]]] = [[] for _ in trees]
        for _ in range(args.rounds):
            for tree, results in zip(trees, found, strict=True):
                with server(tree, model, args.flags.split()) as (url, engine):
                    results.append(load(url, args.streams) | memory(engine))
    table = Table(f"{args.streams} streams", "now", *([args.against] if args.against else []))
    for name in found[0][0]:
        table.add_row(name, *(f"{statistics.median(result[name] for result in results):.1f}" for results in found))
    Console().print(table)


if __name__ == "__main__":
    main()
