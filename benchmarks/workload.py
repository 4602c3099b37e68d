"""The workload of every engine, Noria's and the peers', and the measurement of its speed. Standard library only."""

import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

WARM_UP_TOKENS = 8
PREFILL_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """One generation: seconds until every stream has its first token, then tokens and seconds after that."""

    first: float
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of `prefill` lengths alone; then `tokens` tokens for each of `streams` prompts of `prompt` tokens.

    Prompts are random ids, so that no page can be reused. Answers never end early, and every token is the likeliest.
    """

    threads: int
    prefill: tuple[int, ...] = (128, 512)
    streams: tuple[int, ...] = (1, 8, 32, 64)
    prompt: int = 128
    tokens: int = 64


def joining(prompts: list[list[int]], step_tokens: int) -> int:
    """Additional tokens to generate, for an engine whose first streams decode while other prompts wait.

    Without them, a stream would end before all streams have decoded together for long enough.
    """
    return 2 * sum(map(len, prompts[1:])) // step_tokens


Generate = Callable[[list[list[int]], int], Timing]
"""Generates a number of tokens for each of the prompts."""


def prefill_case(length: int) -> str:
    return f"prefill {length}"


def decode_case(streams: int) -> str:
    return f"decode {streams}"


def measure(generate: Generate, work: Workload, vocab_size: int) -> dict[str, float]:
    """Tokens/s of every case, after a short round to warm up."""

    def ask(streams: int, length: int, tokens: int) -> Timing:
        ids = range(100, vocab_size - 100)
        return generate([random.choices(ids, k=length) for _ in range(streams)], tokens)

    for length in work.prefill:
        ask(1, length, 1)
    for streams in work.streams:
        ask(streams, work.prompt, WARM_UP_TOKENS)
    found = {}
    for length in work.prefill:
        found[prefill_case(length)] = length / statistics.median(
            ask(1, length, 1).first for _ in range(PREFILL_REPEATS)
        )
    for streams in work.streams:
        timing = ask(streams, work.prompt, work.tokens)
        found[decode_case(streams)] = timing.tokens / timing.seconds
    return found


def answer(load: Callable[[str, Workload], tuple[Generate, int]]) -> None:
    """The main function of a process that measures one engine: arguments MODEL WORKLOAD(JSON), output JSON.

    `load(model, work)` gives the engine and the size of its vocabulary.
    """
    model, work = sys.argv[1], Workload(**json.loads(sys.argv[2]))
    generate, vocab_size = load(model, work)
    print(json.dumps(measure(generate, work, vocab_size)))
