"""The requests of a simulation: at random times, with lengths from distributions. `traces.py` reads them from files."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from service.commands.lengths import Draw


@dataclass(frozen=True, slots=True)
class Request:
    """A request: seconds since the start, and its numbers of tokens.

    `prefix` has numbers, each of which stands for `block` tokens of the prompt: equal numbers are equal tokens. The
    tokens after them are found in no other request. `conversation` is what a balancer hashes.
    """

    at: float
    n_prompt: int
    n_output: int
    prefix: tuple[int, ...] = ()
    block: int = 1
    conversation: str | None = None
    tenant: str = ""

    def prompt(self, number: int) -> list[int]:
        """The token ids of the prompt of request `number`: even ones are shared, odd ones are its own."""
        tokens: list[int] = []
        for block in self.prefix:
            tokens += [2 * block] * self.block
        del tokens[self.n_prompt :]
        return tokens + [2 * number + 1] * (self.n_prompt - len(tokens))


def at_random(rate: float, count: int, n_prompt: Draw, n_output: Draw, *, shared: int, seed: int) -> Iterator[Request]:
    """`count` requests at `rate` requests per second (Poisson). The first `shared` tokens of all are the same."""
    rng, at = random.Random(seed), 0.0
    for _ in range(count):
        at += rng.expovariate(rate)
        length = n_prompt(rng)
        yield Request(at, length, n_output(rng), prefix=(0,) if shared else (), block=max(1, min(shared, length)))
