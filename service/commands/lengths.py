"""Numbers of tokens of a load's prompts and answers, as flags describe them."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log

from model.errors import OptionError

LONGEST = 2**24
"""The greatest number of tokens. A draw from a lognormal distribution that is greater becomes this one."""

Draw = Callable[[random.Random], int]

HELP = "N, uniform:LOW-HIGH or lognormal:MEDIAN,SIGMA"
SHAPES = {
    "fixed": re.compile(r"(\d+)"),
    "uniform": re.compile(r"uniform:(\d+)-(\d+)"),
    "lognormal": re.compile(r"lognormal:(\d+),(\d+(?:\.\d+)?)"),
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of numbers of tokens; `least` is the smallest one."""

    least: int
    draw: Draw

    def drawn(self, seed: int) -> Iterator[int]:
        """Yield numbers without an end; equal seeds give equal ones."""
        rng = random.Random(seed)
        while True:
            yield self.draw(rng)


def lengths(text: str, flag: str) -> Lengths:
    """Read numbers of tokens: "512", "uniform:100-900", or "lognormal:MEDIAN,SIGMA" with the sigma of the logarithm.

    Raises OptionError that names the flag, the value and the limit.
    """
    found = {name: match.groups() for name, shape in SHAPES.items() if (match := shape.fullmatch(text))}
    if not found:
        raise OptionError(f"{flag} must be {HELP}, got {text!r}")
    [(name, numbers)] = found.items()
    least = int(numbers[0])
    tokens = [least, int(numbers[1])] if name == "uniform" else [least]
    if least < 1 or max(tokens) > LONGEST:
        raise OptionError(f"{flag} must be of at least 1 token and at most {LONGEST}, got {text!r}")
    if name == "fixed":
        return Lengths(least, lambda rng: least)
    if name == "lognormal":
        return Lengths(1, lambda rng: max(1, round(exp(min(rng.gauss(log(least), float(numbers[1])), log(LONGEST))))))
    if tokens[1] < least:
        raise OptionError(f"{flag}: the greater number must be the second, got {text!r}")
    return Lengths(least, lambda rng: rng.randint(*tokens))
