"""Tokens a second of `noria batch` beside those of `noria bench`, on one server, in turn.

The processor time of each client, a request, says on a busy machine what the clock cannot.

python -m benchmarks.batch --rounds 3
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from service.commands.batch.lines import read
from service.commands.batch.progress import Progress
from service.commands.batch.results import opened
from service.commands.batch.run import run as run_batch
from service.commands.bench import prompts
from service.commands.bench.connections import Connections
from service.commands.bench.workload import Workload, run
from service.commands.own_server import embedded_server

PROMPT_WORDS, TOKENS = 64, 64


def main() -> None:
    """Print the rate of both in each round, and the median of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--concurrency", type=int, default=64)
    arguments = parser.parse_args()
    ratios = []
    with embedded_server(None, lambda stage, done: None) as client:
        for number in range(arguments.rounds):
            measured = {}
            for place in sorted(MEASURES, reverse=number % 2 == 1):  # each goes first in turn
                load = load_of(arguments.requests, arguments.concurrency, 2 * number + (place == "batch"))
                begun = time.process_time()
                measured[place] = MEASURES[place](client, load)
                cost = 1000 * (time.process_time() - begun) / arguments.requests
                print(f"{place} {measured[place]:.0f} tokens/s, {cost:.1f} ms of the client a request", flush=True)
            ratios.append(measured["batch"] / measured["bench"])
    print(f"median ratio {statistics.median(ratios):.2f}")


def load_of(n_requests: int, n_at_once: int, seed: int) -> Workload:
    """Requests whose prompts are in no cache."""
    common = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    texts = prompts.random_prompts([PROMPT_WORDS] * n_requests, 0, seed)
    made = [common | body for body in prompts.bodies(texts, "completions")]
    return Workload("/v1/completions", made, n_at_once, None, seed, 600.0)


def bench(client: httpx.Client, load: Workload) -> float:
    """Tokens a second, as `noria bench` measures them: the answers are streams."""
    return asyncio.run(_bench(client, load))


async def _bench(client: httpx.Client, load: Workload) -> float:
    streams = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = Workload(
        load.path, tuple({**body, **streams} for body in load.bodies), load.concurrency, None, load.seed, load.timeout
    )
    headers = {"authorization": client.headers["authorization"]}
    async with Connections(str(client.base_url), headers) as connections:
        results = await run(connections, streamed, lambda result: None)
    return sum(result.completion_tokens for result in results) / max(r.start + r.seconds for r in results)


def batch(client: httpx.Client, load: Workload) -> float:
    """Tokens a second of `noria batch`, with all that it does to the files."""
    with tempfile.TemporaryDirectory() as folder:
        bodies = [*load.bodies]
        source, out = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        with source.open("w") as file:
            for number, body in enumerate(bodies):
                line = {"custom_id": str(number), "method": "POST", "url": load.path, "body": body}
                file.write(json.dumps(line) + "\n")
        begun = time.perf_counter()
        with opened(out, retry_failed=False) as results:
            progress = Progress(len(bodies), len(bodies), 0, results)
            limits = httpx.Limits(max_connections=load.concurrency)
            sender = httpx.AsyncClient(
                base_url=client.base_url, headers=client.headers, timeout=None, limits=limits, trust_env=False
            )
            asyncio.run(run_batch(sender, read(source), load.concurrency, progress.write))
        seconds = time.perf_counter() - begun
        answers = [json.loads(line) for line in out.read_text().splitlines()]
    return sum(answer["response"]["body"]["usage"]["completion_tokens"] for answer in answers) / seconds


MEASURES = {"batch": batch, "bench": bench}


if __name__ == "__main__":
    main()
