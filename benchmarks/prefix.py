"""The benefit of prefix reuse through HTTP: `python -m benchmarks.prefix [--url URL] [--model MODEL]`.

It measures the time to the first token of a prompt of 2,000 tokens, and of a second prompt with the same beginning.
Then it runs a chat of 8 questions, and reports how many prompt tokens each request computes and how many are new.
Without --url it starts a server.
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from service.commands.endpoint import find_model
from service.commands.target import TargetOptions, target

SHARED, OWN = 2000, 16
"""Tokens of a prompt that are shared, and tokens that are its own."""
TOKEN_IDS = range(1000, 30_000)
QUESTIONS = (
    "What is a noria?",
    "Who built the first ones?",
    "How does one lift water?",
    "What is it made of?",
    "How much water can it move in a day?",
    "Where can one still be seen?",
    "What replaced it?",
    "Sum up what you told me.",
)


def first_token(client: httpx.Client, model: str, prompt: list[int]) -> float:
    """Seconds until the first event of a streamed completion."""
    body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": True}
    started = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        lines = response.iter_lines()
        next(line for line in lines if line.startswith("data:"))
        took = time.perf_counter() - started
        for _ in lines:  # to the end, so that the next request runs alone
            pass
    return took


def shared_prefix(client: httpx.Client, model: str, repeat: int) -> tuple[float, float]:
    """Median seconds to the first token of a prompt and of one that shares its beginning."""
    firsts, seconds = [], []
    for _ in range(repeat):
        prefix = random.choices(TOKEN_IDS, k=SHARED)
        firsts.append(first_token(client, model, prefix + random.choices(TOKEN_IDS, k=OWN)))
        seconds.append(first_token(client, model, prefix + random.choices(TOKEN_IDS, k=OWN)))
    return statistics.median(firsts), statistics.median(seconds)


def chat(client: httpx.Client, model: str, answer_tokens: int) -> Iterator[dict[str, Any]]:
    """The usage of every request of the chat."""
    messages: list[dict[str, str]] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        body = {"model": model, "messages": messages, "max_tokens": answer_tokens, "temperature": 0}
        response = client.post("/v1/chat/completions", json=body).raise_for_status().json()
        messages.append({"role": "assistant", "content": response["choices"][0]["message"]["content"]})
        yield response["usage"]


def usage_table(usages: Iterator[dict[str, Any]]) -> Table:
    """The table of the chat. Computed tokens did not come from the cache. New tokens follow the previous answer."""
    result = Table("request", "prompt", "cached", "computed", "new", "answer")
    known = 0
    for number, usage in enumerate(usages, 1):
        prompt, answer = usage["prompt_tokens"], usage["completion_tokens"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        result.add_row(*map(str, (number, prompt, cached, prompt - cached, prompt - known, answer)))
        known = prompt + answer
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="address of a running server")
    parser.add_argument("--api-key")
    parser.add_argument("--model", help="model to serve; with --url a model id of that server")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--answer-tokens", type=int, default=64)
    args = parser.parse_args()
    console = Console()
    with target(TargetOptions(args.model, args.url, args.api_key)) as server, server.client() as client:
        model = find_model(client, args.model if args.url else None)
        first_token(client, model, random.choices(TOKEN_IDS, k=OWN))  # warms up
        first, second = shared_prefix(client, model, args.repeat)
        console.print(f"{SHARED} shared tokens, median time to first token of {args.repeat}:")
        console.print(f"first {1000 * first:.1f} ms, second {1000 * second:.1f} ms, ratio {first / second:.1f}")
        console.print(usage_table(chat(client, model, args.answer_tokens)))


if __name__ == "__main__":
    main()
