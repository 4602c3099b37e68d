"""What HTTP adds to the steps of an engine: loads on a real server, with the client on the same machine."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from benchmarks.costs.fit import least_squares, typical
from service.commands.bench.connections import Connections
from service.commands.bench.prompts import random_prompts
from service.commands.bench.summary import inter_token
from service.commands.bench.workload import Result, Workload
from service.commands.bench.workload import run as send
from service.commands.endpoint import base_url, find_model
from service.commands.own_server import embedded_server
from service.commands.simulate.costs import Line

STREAMS = (1, 4, 16, 48)
PROMPT, OUTPUT = 64, 48


@dataclass(frozen=True, slots=True)
class Server:
    """A server of ours, and the model that it serves."""

    client: httpx.Client
    model: str

    def load(self, prompts: list[Any], outputs: list[int], *, seed: int, **pace: Any) -> list[Result]:
        """Send completions and measure them. `pace` is a rate or a concurrency."""
        common = {"model": self.model, "temperature": 0, "stream": True, "ignore_eos": True}
        common["stream_options"] = {"include_usage": True}
        bodies = [
            common | {"prompt": prompt, "max_tokens": output} for prompt, output in zip(prompts, outputs, strict=True)
        ]
        work = {"concurrency": 1, "rate": None} | pace
        return asyncio.run(self._send(Workload("/v1/completions", tuple(bodies), seed=seed, timeout=600.0, **work)))

    async def _send(self, workload: Workload) -> list[Result]:
        headers = {"authorization": self.client.headers["authorization"]}
        async with Connections(base_url(str(self.client.base_url)), headers) as connections:
            results = await send(connections, workload, lambda _: None)
        if failed := [result for result in results if result.error]:
            raise RuntimeError(f"{len(failed)} requests failed: {failed[0].error}: {failed[0].detail}")
        return results


@contextmanager
def server(model: str, flags: tuple[str, ...] = (), module: str = "service") -> Iterator[Server]:
    with embedded_server(model, lambda stage, done: None, flags, module) as client:
        yield Server(client, find_model(client, None))


def measure(
    target: Server, lines: tuple[Line, ...], quantile: float | None, on_load: Callable[[str], None]
) -> tuple[Line, float]:
    """What the service adds to a step and to each of its sequences, and to the first token of a request, in seconds."""
    extra: list[tuple[int, float, float]] = []
    request = 0.0
    for seed, streams in enumerate((STREAMS[0], *STREAMS)):  # the first load only warms up
        on_load(f"{streams} streams over HTTP")
        prompts = [*random_prompts([PROMPT] * (3 * streams + 3), 0, seed)]
        results = target.load(prompts, [OUTPUT] * len(prompts), seed=seed, concurrency=streams)
        gaps = [gap for result in results for gap, _ in inter_token(result)]
        keys = streams * (PROMPT + OUTPUT / 2)
        seconds = max(line.seconds(streams, streams, keys, keys) for line in lines)
        found = typical(gaps, quantile)
        extra.append((streams, found - seconds, found))
        if streams == 1:
            first = typical([result.arrivals[0] for result in results], quantile)
            request = first - max(line.seconds(PROMPT, 1, PROMPT, PROMPT**2 / 2) for line in lines)
    return _added(extra[1:]), max(0.0, request)


def _added(extra: list[tuple[int, float, float]]) -> Line:
    streams, added, seconds = np.array(extra).T
    step, sequence = least_squares(np.column_stack([np.ones(len(streams)), streams]), added, seconds)
    return Line(step=float(step), sequence=float(sequence))
