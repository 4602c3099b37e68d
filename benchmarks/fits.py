"""The memory that a model needs on a CPU, and the tokens a second that memory allows one sequence.

Both come from `noria plan`'s numbers, and nothing is loaded. The memory is the least in which a sequence of `CONTEXT`
tokens has a place. The limit of speed is the rate of the memory, divided by the weights that are read for a token; keys
and values are left out. Without --rate this machine's memory is measured.

    python -m benchmarks.fits mistralai/Mistral-Nemo-Instruct-2407 --rate 60
"""

import argparse
from pathlib import Path

from model.checkpoint.resolve import resolve
from model.memory.plan import MemoryPlan, make_plan
from model.options import RunnerOptions

CONTEXT = 8192
SCHEMES = ("int8", "int4")
GIB = 2**30
MEASURED_BYTES = 2**31


def plan(directory: Path, scheme: str, memory: int | None) -> MemoryPlan:
    return make_plan(directory, RunnerOptions("", device="cpu", quantize=scheme), memory)


def least_memory(directory: Path, scheme: str) -> int:
    """The least number of GiB, whole, in which a sequence of `CONTEXT` tokens fits, or of the model's own context."""
    bare = plan(directory, scheme, None)
    length, gib = min(CONTEXT, bare.context), max(1, bare.taken // GIB)
    while (plan(directory, scheme, gib * GIB).served or 0) < length:
        gib += 1
    return gib


def cells(directory: Path, rates: tuple[float, ...], schemes: tuple[str, ...] = SCHEMES) -> list[str]:
    """GiB of memory, GB that a token reads, and tokens a second at each rate in GB/s, each for all schemes."""
    memory = [str(least_memory(directory, scheme)) for scheme in schemes]
    read = [plan(directory, scheme, None).read / 1e9 for scheme in schemes]
    numbers = [[f"{each:.1f}" for each in read], *([speed(rate / each) for each in read] for rate in rates)]
    return [", ".join(values) for values in (memory, *numbers)]


def speed(tokens: float) -> str:
    return f"{tokens:.1f}" if tokens < 10 else f"{tokens:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--rate", type=float, action="append", help="GB/s of the machine's memory")
    asked = parser.parse_args()
    rates = tuple(asked.rate or [measured()])
    for model in asked.models:
        print(f"| {' | '.join([model, *cells(resolve(model, weights=False), rates)])} |")


def measured() -> float:
    from benchmarks.step import bandwidth  # torch
    from model.machine.host import choose_threads

    threads = choose_threads()
    rate = bandwidth(MEASURED_BYTES, threads) / 1e9
    print(f"memory read at {rate:.1f} GB/s by {threads} threads")
    return rate


if __name__ == "__main__":
    main()
