"""Estimates of a step on a GPU that nobody has: `python -m benchmarks.gpu.estimate [--gpu h100] [--scheme none]`.

Nothing here is measured. Mistral 7B's own code runs on fake tensors (absent.py), which gives each launch with its
bytes and operations. A launch takes as long as the slowest of these: its bytes at the share of the data sheet's
bandwidth that times.py names, its operations at the share of the data sheet's rate, the values of x that programs
read again and again from the L2 cache, and the passes that its longest program walks one after the other. The table
`Assumptions` has every number that is neither counted nor from a data sheet.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from benchmarks.gpu import absent
from benchmarks.gpu.times import CARDS, Assumptions, Card, Estimator, Times
from model.batch import PAGE_SIZE, PageTable, Slice, StepBatch
from model.config import ModelConfig
from model.options import STEP_LIMITS, RunnerOptions
from model.sampling_params import SamplingParams

NAME = "Mistral 7B v0.3, bfloat16"
MISTRAL_7B = ModelConfig("mistral", 4096, 32, 32, 8, 128, 14336, 32768, 1e-5, 1e6, 32768, (None,) * 32)


class Case(NamedTuple):
    """A kind of step: streams that decode with so many tokens of context, and a prompt, in chunks of a step.

    `length` is the longest sequence that the runner serves.
    """

    name: str
    streams: int = 0
    context: int = 0
    prompt: int = 0
    params: SamplingParams = SamplingParams(temperature=0.0, max_tokens=2)
    length: int = MISTRAL_7B.max_position

    def batches(self, chunk: int) -> Iterator[StepBatch]:
        """The steps: one, or those of all chunks of the prompt."""
        decoding = [self._slice(number, self.context, self.context - 1, self.context) for number in range(self.streams)]
        if not self.prompt:
            yield StepBatch(tuple(decoding))
        for start in range(0, self.prompt, chunk):
            stop = min(start + chunk, self.prompt)
            yield StepBatch((*decoding, self._slice(self.streams, self.prompt, start, stop)))

    def _slice(self, number: int, length: int, start: int, stop: int) -> Slice:
        pages = range(-(-stop // PAGE_SIZE))
        return Slice(number, [1] * length, length, start, stop, (PageTable(0, pages),), self.params)


SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=2)
CASES = (
    Case("decode 1", 1, 2048),
    Case("decode 32", 32, 2048),
    Case("decode 256", 256, 2048),
    Case("decode 256, top_p", 256, 2048, params=SAMPLED),
    Case("decode 256, prompt of 512", 255, 2048, prompt=512),
    Case("prompt of 2k", prompt=2048),
    Case("prompt of 8k", prompt=8192),
    Case("decode 256, up to 128k", 256, 2048, length=131_072),
)
HOST_STEP, HOST_SEQUENCE = 0.21e-3, 10.5e-6
"""Seconds of Python for a step, and for each of its sequences: `benchmarks.host` at 64 and 256, two busy cores."""
MEMORY = 2**36
"""Bytes of keys and values: no estimate depends on them."""


def estimate(card: Card, scheme: str, cases: Sequence[Case], assumed: Assumptions) -> Iterator[tuple[Case, Times]]:
    """The times of each case."""
    for length in dict.fromkeys(case.length for case in cases):
        config = replace(MISTRAL_7B, max_position=length)
        with absent.absent(card.capability, card.n_sms) as recorder:
            runner = absent.load(config, recorder, RunnerOptions("", quantize=scheme, cache_memory=MEMORY))
            for case in cases:
                if case.length == length:
                    total = Times()
                    for batch in case.batches(STEP_LIMITS["cuda"][1]):
                        launches = absent.step(runner, recorder, batch)
                        total = total.plus(Estimator(card, config, assumed).times(launches, batch))
                    yield case, total


HEADINGS = ("", "GB", "TFLOP", "in graphs", "launches", "device ms", "launching ms", "host ms", "step ms")


def row(case: Case, times: Times) -> list[str]:
    """A row of the table. While the device computes a step, the host prepares and launches the next one."""
    n_steps = max(1, -(-case.prompt // STEP_LIMITS["cuda"][1]))
    prepare = n_steps * (HOST_STEP + HOST_SEQUENCE * (case.streams + bool(case.prompt)))
    seconds = times.device, times.host, prepare, max(times.device, times.host + prepare)
    counted = (
        f"{times.n_bytes / 1e9:.1f}",
        f"{times.operations / 1e12:.2f}",
        f"{times.in_graph:.0f}",
        f"{times.outside:.0f}",
    )
    return [case.name, *counted, *(f"{1000 * value:.2f}" for value in seconds)]


def table(lines: Sequence[Sequence[str]]) -> str:
    """Markdown, whose source is aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * (width - 1) + (":" if column else "-") for column, width in enumerate(widths)]
    return "\n".join(
        "| " + " | ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in cells) + " |"
        for line in (lines[0], rule, *lines[1:])
        for cells in [list(enumerate(zip(line, widths, strict=True)))]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=CARDS, default="h100")
    parser.add_argument("--scheme", nargs="+", choices=("none", "fp8", "int4"), default=["none", "fp8", "int4"])
    args = parser.parse_args()
    card, assumed = CARDS[args.gpu], Assumptions()
    print(f"estimates, nothing is measured: {NAME.split(',')[0]} on {card.gpu.name}\n")
    for scheme in args.scheme:
        found = dict(estimate(card, scheme, CASES, assumed))
        print(f"--quantize {scheme}\n\n{table([HEADINGS, *(row(case, found[case]) for case in CASES)])}\n")
    print(table([("assumed", "value"), *((each.name, f"{getattr(assumed, each.name):g}") for each in fields(assumed))]))


if __name__ == "__main__":
    main()
