"""The requests of a simulation: at random times, with lengths from distributions. `traces.py` reads them from files."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log

from model.errors import OptionError

Draw = Callable[[random.Random], int]

SHAPES = {
    "fixed": re.compile(r"(\d+)"),
    "uniform": re.compile(r"uniform:(\d+)-(\d+)"),
    "lognormal": re.compile(r"lognormal:(\d+),(\d+(?:\.\d+)?)"),
}


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


def distribution(text: str, flag: str) -> Draw:
    """Numbers of tokens: "512", "uniform:100-900", or "lognormal:MEDIAN,SIGMA" with the sigma of the logarithm.

    Raises OptionError that names the flag and the value.
    """
    found = {name: match.groups() for name, shape in SHAPES.items() if (match := shape.fullmatch(text))}
    if not found:
        raise OptionError(f"{flag} must be N, uniform:LOW-HIGH or lognormal:MEDIAN,SIGMA, got {text!r}")
    [(name, numbers)] = found.items()
    if int(numbers[0]) < 1:
        raise OptionError(f"{flag} must be of at least 1 token, got {text!r}")
    if name == "fixed":
        return lambda rng: int(numbers[0])
    if name == "lognormal":
        return lambda rng: max(1, round(exp(rng.gauss(log(int(numbers[0])), float(numbers[1])))))
    if int(numbers[1]) < int(numbers[0]):
        raise OptionError(f"{flag}: the greater number must be the second, got {text!r}")
    return lambda rng: rng.randint(int(numbers[0]), int(numbers[1]))


def at_random(rate: float, count: int, n_prompt: Draw, n_output: Draw, *, shared: int, seed: int) -> Iterator[Request]:
    """`count` requests at `rate` requests per second (Poisson). The first `shared` tokens of all are the same."""
    rng, at = random.Random(seed), 0.0
    for _ in range(count):
        at += rng.expovariate(rate)
        length = n_prompt(rng)
        yield Request(at, length, n_output(rng), prefix=(0,) if shared else (), block=max(1, min(shared, length)))
