"""Seconds of a model that hears: its encoder, its prompts, its answers, and text streams beside recordings.

    python -m benchmarks.random_weights --audio FOLDER
    python -m benchmarks.hearing --rounds 2 FOLDER -- --quantize int8

What follows `--` are flags of `noria serve`. In each round 8 streams of text decode alone, and beside recordings of 30
s, one after the other. Then it asks about 30 s of audio, and about 120 s, for 100 tokens for each 30 s. "encoder" is
what a prompt takes more than the same one after another first word, which finds the embeddings.
"""

import argparse
import asyncio
import base64
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from io import BytesIO
from itertools import count, pairwise
from typing import Any, NamedTuple

import httpx
import numpy as np
import soundfile
from rich.console import Console

from benchmarks.audio import voice
from benchmarks.recovery import serving

RATE, CHUNK = 16_000, 30
TOKENS, STREAMS, STREAM_TOKENS = 100, 8, 200
LENGTHS = (CHUNK, 4 * CHUNK)


class Heard(NamedTuple):
    """Of one answer: seconds until its first token and its last, and those that the engine took for the prompt."""

    first: float
    whole: float
    prompt: float
    n_prompt: int
    n_tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="seconds of audio, without streams")
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    console = Console(width=140)
    with serving(args.model, "--prompt-lookup", "off", *args.flags) as (_, client):
        asyncio.run(measure(str(client.base_url), args.rounds, args.lengths, console))


async def measure(url: str, rounds: int, lengths: Sequence[int], console: Console) -> None:
    seeds = count()
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        await ask(client, recording(1, next(seeds)), "warm", 8)
        for _ in range(rounds):
            console.print(f"load average {os.getloadavg()[0]:.1f}")
            for hears in (False, True):
                console.print(await beside(client, seeds, hears=hears))
            for seconds in lengths:
                console.print(await alone(client, seconds, seeds))


async def alone(client: httpx.AsyncClient, seconds: int, seeds: "count[int]") -> str:
    audio = recording(seconds, next(seeds))
    heard = await ask(client, audio, "one", TOKENS * seconds // CHUNK)
    again = await ask(client, audio, "two", 1)
    return (
        f"{seconds} s: {heard.n_prompt} tokens; encoder {heard.prompt - again.prompt:.2f} s, prompt {again.prompt:.2f} "
        f"s, first token {heard.first:.2f} s; {heard.n_tokens} tokens {heard.whole:.2f} s, {seconds / heard.whole:.2f} "
        "of real time"
    )


async def beside(client: httpx.AsyncClient, seeds: "count[int]", *, hears: bool) -> str:
    found, times = await streams(client, seeds, hears=hears)
    half, high, longest = (1000 * np.percentile(found, share) for share in (50, 99, 100))
    heard = f"{len(times)} recordings beside, each {np.mean(times):.1f} s" if times else "no recording complete"
    return f"{STREAMS} streams: p50 {half:.0f} ms, p99 {high:.0f} ms, longest {longest:.0f} ms, {len(found)}; {heard}"


def recording(seconds: int, seed: int) -> str:
    """A WAV file in base64."""
    file = BytesIO()
    soundfile.write(file, voice(seconds, RATE, seed), RATE, "PCM_16", format="WAV")
    return base64.b64encode(file.getvalue()).decode()


async def ask(client: httpx.AsyncClient, audio: str, word: str, n_tokens: int) -> Heard:
    """Ask about a recording, after a word."""
    part = {"type": "input_audio", "input_audio": {"data": audio, "format": "wav"}}
    began, first, last = time.perf_counter(), 0.0, {}
    async for event in events(client, [{"type": "text", "text": word}, part], n_tokens):
        first = first or has_token(event) * (time.perf_counter() - began)
        last = event
    usage, spent = last["usage"], last["timings"]
    whole = time.perf_counter() - began
    return Heard(first, whole, spent["prompt_ms"] / 1000, usage["prompt_tokens"], usage["completion_tokens"])


async def streams(client: httpx.AsyncClient, seeds: "count[int]", *, hears: bool) -> tuple[list[float], list[float]]:
    """Seconds between the tokens of all streams, and of each recording that was heard meanwhile."""
    times: list[float] = []

    async def listen() -> None:
        while True:
            times.append((await ask(client, recording(CHUNK, next(seeds)), "beside", TOKENS)).whole)

    listener = asyncio.create_task(listen()) if hears else None
    found = await asyncio.gather(*(gaps(client, f"Stream {next(seeds)}") for _ in range(STREAMS)))
    if listener:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
    return [gap for each in found for gap in each], times


async def gaps(client: httpx.AsyncClient, text: str) -> list[float]:
    times = [time.perf_counter() async for event in events(client, text, STREAM_TOKENS) if has_token(event)]
    return [after - before for before, after in pairwise(times)]


def has_token(event: dict[str, Any]) -> bool:
    return any(choice["logprobs"] for choice in event["choices"])


async def events(client: httpx.AsyncClient, content: Any, n_tokens: int) -> AsyncIterator[dict[str, Any]]:
    """The events of a chat completion of so many tokens, each with its token."""
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": n_tokens, "ignore_eos": True}
    body |= {"temperature": 0, "stream": True, "logprobs": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            raise SystemExit((await response.aread()).decode())
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


if __name__ == "__main__":
    main()
