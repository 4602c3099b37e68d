"""How streams fare while long prompts arrive: `python -m benchmarks.beside_prompts URL`.

Streams decode alone, then beside prompts that come at random times (Poisson) and get one token each. It prints the
times between two tokens of a stream in both parts, and the times to the first token of the prompts. A token without
text, such as a control token, joins the next one.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import httpx

from service.commands.bench.connections import Connections
from service.commands.bench.prompts import random_prompts
from service.commands.bench.workload import Result, Workload, run
from service.commands.endpoint import find_model

SETTLE, ALONE = 1.0, 3.0
"""Seconds before the first token that counts, and of decoding alone."""
TIMEOUT = 600.0


def load(bodies: list[dict[str, Any]], streams: int, rate: float | None) -> Workload:
    return Workload("/v1/completions", tuple(bodies), streams, rate, 0, TIMEOUT)


def checked(results: list[Result]) -> list[Result]:
    if failed := [item for item in results if item.error]:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0].error}: {failed[0].detail}")
    return results


def gaps(results: Sequence[Result], begin: float, end: float) -> list[float]:
    """Seconds between two tokens of a stream, of those that end between two times."""
    return sorted(
        b - a for item in results for a, b in pairwise(item.arrivals) if begin < item.start + a and item.start + b < end
    )


def line(name: str, seconds: Sequence[float]) -> str:
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "longest": 1.0}
    figures = (f"{n} {1000 * seconds[min(len(seconds) - 1, int(s * len(seconds)))]:7.1f}" for n, s in shares.items())
    return f"{name:36} {'  '.join(figures)} ms"


async def measure(url: str, options: argparse.Namespace) -> None:
    with httpx.Client(base_url=url, timeout=TIMEOUT) as client:
        common = {"model": find_model(client, None), "temperature": 0, "ignore_eos": True, "stream": True}
    seed = time.time_ns()  # no cache has seen these prompts
    streams = [
        common | {"prompt": text, "max_tokens": options.tokens}
        for text in random_prompts([64] * options.streams, 0, seed)
    ]
    prompts = [
        common | {"prompt": text, "max_tokens": 1}
        for text in random_prompts([options.length] * options.prompts, 0, seed + 1)
    ]
    async with Connections(url, {}) as connections:
        begun = time.perf_counter()
        decoding = asyncio.create_task(run(connections, load(streams, options.streams, None), lambda _: None))
        await asyncio.sleep(SETTLE + ALONE)
        arrived = time.perf_counter() - begun
        firsts = checked(await run(connections, load(prompts, 1, options.rate), lambda _: None))
        ended = time.perf_counter() - begun
        results = checked(await decoding)
    if min(item.start + item.seconds for item in results) < ended:
        raise SystemExit(f"a stream ended before the prompts; give them more --tokens than {options.tokens}")
    alone, beside = gaps(results, SETTLE, arrived), gaps(results, arrived, ended)
    print(line(f"{options.streams} streams alone, tokens", alone))
    print(line("beside prompts, tokens", beside))
    print(line(f"{options.prompts} prompts of {options.length}, first token", sorted(item.seconds for item in firsts)))
    print(f"{'tokens a second of the streams':36} alone {len(alone) / (arrived - SETTLE):.0f}, ", end="")
    print(f"beside prompts {len(beside) / (ended - arrived):.0f}, for {ended - arrived:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=800, help="of each stream (800)")
    parser.add_argument("--prompts", type=int, default=8, help="how many arrive (8)")
    parser.add_argument("--length", type=int, default=2000, help="tokens of each prompt (2000)")
    parser.add_argument("--rate", type=float, default=1.0, help="prompts a second (1)")
    options = parser.parse_args()
    asyncio.run(measure(options.url, options))


if __name__ == "__main__":
    main()
