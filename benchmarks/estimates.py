"""How good the estimates of `/v1/requests/{id}` are: `python -m benchmarks.estimates URL`.

It sends chats of different lengths at once, asks about each while it waits, and compares.
"""

import asyncio
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import httpx

LEARN, ASKED = 8, 40
"""Requests before any is asked about, and requests that are."""
SHORTEST = 0.05
"""A wait that is over when the answer comes says nothing, in seconds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The answer of the server at a time, and when the client had the first token."""

    at: float
    facts: dict[str, Any]
    first: float


def body(rng: random.Random, seed: int) -> dict[str, Any]:
    words = " ".join(
        rng.choice(("river", "wheel", "bucket", "water", "stone")) for _ in range(rng.choice((5, 40, 200)))
    )
    message = {"role": "user", "content": f"Write about {words}"}
    limit = rng.choice((32, 64, 128, 200))
    return {"messages": [message], "max_tokens": limit, "seed": seed, "temperature": 1, "stream": True}


async def ask(http: httpx.AsyncClient, request_id: str, after: float) -> tuple[float, dict[str, Any]]:
    """The facts of a request, as soon as it is tokenized."""
    await asyncio.sleep(after)
    while True:
        at = time.perf_counter()
        response = await http.get(f"/v1/requests/{request_id}")
        if response.is_success and response.json()["state"] != "preparing":
            return at, response.json()
        await asyncio.sleep(0.2)


async def send(http: httpx.AsyncClient, request_id: str, content: dict[str, Any]) -> float:
    """When the client had the first token."""
    first = 0.0
    async with http.stream(
        "POST", "/v1/chat/completions", json=content, headers={"x-request-id": request_id}
    ) as stream:
        stream.raise_for_status()
        async for line in stream.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                first = first or (time.perf_counter() if chunk["choices"][0]["delta"].get("content") else 0.0)
    return first


async def measure(url: str) -> list[Asked]:
    rng = random.Random(1)
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        await asyncio.gather(*(send(http, f"learn-{n}", body(rng, n)) for n in range(LEARN)))

        async def one(number: int) -> Asked:
            name = f"asked-{number}"
            first, asked = await asyncio.gather(
                send(http, name, body(rng, number)), ask(http, name, rng.uniform(0.5, 6))
            )
            return Asked(asked[0], asked[1], first)

        return await asyncio.gather(*map(one, range(ASKED)))


def show(name: str, rows: list[tuple[dict[str, float], float]]) -> None:
    rows = [(estimate, wait) for estimate, wait in rows if estimate and wait > SHORTEST]
    errors = [abs(estimate["seconds"] - wait) for estimate, wait in rows]
    inside = sum(error <= row[0]["error_seconds"] for error, row in zip(errors, rows, strict=True))
    relative = statistics.median(error / row[1] for error, row in zip(errors, rows, strict=True))
    print(
        f"{name}: {len(rows)} asked, median wait {statistics.median(wait for _, wait in rows):.2f} s, "
        f"median error {statistics.median(errors):.2f} s ({relative:.0%}), inside {inside / len(rows):.0%}, "
        f"median stated error {statistics.median(estimate['error_seconds'] for estimate, _ in rows):.2f} s"
    )


def main() -> None:
    asked = asyncio.run(measure(sys.argv[1]))
    show("first_token", [(row.facts["first_token"], row.first - row.at) for row in asked])


if __name__ == "__main__":
    main()
