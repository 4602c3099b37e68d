"""How streams fare while an image is encoded: `python -m benchmarks.beside_images URL`.

Streams decode alone, then beside a long text prompt, then beside images of the given sides in pixels. It prints the
times between two tokens of a stream while the other request runs. The streams ask for log probabilities, because a
token without text, such as a control token, has no event otherwise.
"""

import argparse
import asyncio
import base64
import io
import time
from collections.abc import Awaitable, Sequence
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
from PIL import Image

STREAMS, SETTLE = 8, 1.0
"""Streams, and the seconds before the other request begins."""
SECONDS = 600.0
TEXT = "a long story of the sea and " * 200


def image_url(side: int) -> str:
    """An image of noise as a data URL. Each has its own noise, so that no cache serves it."""
    pixels = np.random.default_rng(time.time_ns()).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


async def stream(client: httpx.AsyncClient, number: int, n_tokens: int) -> list[float]:
    """The times of a stream's tokens."""
    body = {"prompt": f"Story {number} " * 8, "max_tokens": n_tokens, "ignore_eos": True, "logprobs": 0, "stream": True}
    times = []
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter())
    return times


async def other(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[float, float]:
    """When the other request began and ended."""
    await asyncio.sleep(SETTLE)
    began = time.perf_counter()
    (await client.post(path, json={"max_tokens": 1, **body})).raise_for_status()
    return began, time.perf_counter()


async def case(
    client: httpx.AsyncClient, n_tokens: int, name: str, request: Awaitable[tuple[float, float]] | None
) -> None:
    streams = asyncio.gather(*(stream(client, number, n_tokens) for number in range(STREAMS)))
    began, ended = (0.0, float("inf")) if request is None else await request
    gaps = sorted(b - a for times in await streams for a, b in pairwise(times) if b > began and a < ended)
    if not gaps:
        raise SystemExit(f"{name}: the streams had ended before; give them more --tokens than {n_tokens}")
    seconds = "" if request is None else f"   the request took {ended - began:.1f} s"
    print(f"{name:30} median {_ms(gaps, 0.5)}, p99 {_ms(gaps, 0.99)}, longest {_ms(gaps, 1)} ms{seconds}", flush=True)


def _ms(gaps: Sequence[float], share: float) -> str:
    return f"{1000 * gaps[min(len(gaps) - 1, int(share * len(gaps)))]:6.0f}"


async def run(url: str, sides: Sequence[int], n_tokens: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as client:
        await case(client, n_tokens, "alone", None)
        await case(client, n_tokens, "beside a text prompt", other(client, "/v1/completions", {"prompt": TEXT}))
        for side in sides:
            content = [{"type": "image_url", "image_url": {"url": image_url(side)}}]
            body = {"messages": [{"role": "user", "content": content}]}
            await case(client, n_tokens, f"beside {side} x {side} pixels", other(client, "/v1/chat/completions", body))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--sides", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--tokens", type=int, default=300, help="of each stream")
    options = parser.parse_args()
    asyncio.run(run(options.url, options.sides, options.tokens))


if __name__ == "__main__":
    main()
