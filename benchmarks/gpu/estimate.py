"""Estimates of a step on a GPU that nobody has: `python -m benchmarks.gpu.estimate [--gpu h100] [--scheme none]`.

Nothing here is measured. Mistral 7B's own code runs on fake tensors (absent.py), which gives each launch with its
bytes and operations. A launch takes as long as the slowest of these: its bytes at the share of the data sheet's
bandwidth that roofline.py names, its operations at the share of the data sheet's rate, the values of x that programs
read again and again from the L2 cache, and the passes that its longest program walks one after the other. The table
`Assumptions` has every number that is neither counted nor from a data sheet.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import NamedTuple

from benchmarks.costs.roofline import ARITHMETIC_SHARE, BANDWIDTH_SHARE, GPUS, MISTRAL_7B, NAME, Gpu
from benchmarks.gpu import absent
from benchmarks.gpu.absent import Launch
from model.batch import PAGE_SIZE, PageTable, Slice, StepBatch
from model.config import ModelConfig
from model.options import STEP_LIMITS, RunnerOptions
from model.sampling_params import SamplingParams


class Card(NamedTuple):
    """A data sheet, the compute capability, and the number of multiprocessors."""

    gpu: Gpu
    capability: tuple[int, int]
    multiprocessors: int


CARDS = {
    "h100": Card(GPUS["h100-80gb"], (9, 0), 132),
    "h200": Card(Gpu("H200 SXM 141 GB", 141e9, 4.8e12, 989e12), (9, 0), 132),
    "a100": Card(GPUS["a100-80gb"], (8, 0), 108),
    "l4": Card(GPUS["l4-24gb"], (8, 9), 58),
    "4090": Card(Gpu("GeForce RTX 4090", 24e9, 1.008e12, 165e12), (8, 9), 128),
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Seconds that are neither counted nor from a data sheet, and other numbers like them.

    `gap`: between two kernels of a graph; `gap_outside`: between two others. `shortest`: of any kernel. `host`: that
    the host needs to launch one kernel outside of a graph. `walk`: of a pass over a block of keys in attention. `idle`:
    of a program that finds nothing to do, `resident` of which a multiprocessor runs at a time. `sort`: of a value that
    PyTorch sorts. `l2` is the speed of the
    L2 cache as a multiple of the memory's. `attention_share` is the share of the data sheet's rate that attention over
    prompts reaches, and `fp8_rate` the speed of fp8 products as a multiple of bfloat16's.
    """

    gap: float = 1e-6
    gap_outside: float = 3e-6
    shortest: float = 1.5e-6
    host: float = 5e-6
    walk: float = 0.5e-6
    idle: float = 1e-6
    resident: int = 4
    sort: float = 0.25e-9
    l2: float = 1.6
    attention_share: float = 0.4
    fp8_rate: float = 2.0


class Times(NamedTuple):
    """Bytes, operations, launches inside and outside of graphs, and seconds on the device and of launching."""

    n_bytes: float = 0.0
    operations: float = 0.0
    in_graph: float = 0.0
    outside: float = 0.0
    device: float = 0.0
    host: float = 0.0

    def plus(self, other: "Times") -> "Times":
        return Times(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Estimator:
    """The times of a step on a card."""

    card: Card
    config: ModelConfig
    assumed: Assumptions = Assumptions()

    def times(self, launches: Sequence[Launch], batch: StepBatch) -> Times:
        total = Times()
        for launch in launches:
            total = total.plus(self._one(launch, batch))
        return total

    def _one(self, launch: Launch, batch: StepBatch) -> Times:
        n_bytes, operations, share = self._work(launch, batch)
        gpu, assumed = self.card.gpu, self.assumed
        bandwidth = gpu.bandwidth * BANDWIDTH_SHARE
        busy = max(
            n_bytes / bandwidth,
            operations / (gpu.operations * share),
            _reread(launch) / (bandwidth * assumed.l2),
            self._walked(launch, batch),
            launch.tensors[0].numel() * assumed.sort if launch.name in SORTS else 0.0,
            assumed.shortest,
        )
        busy += self._idle(launch, batch) + (assumed.gap if launch.in_graph else assumed.gap_outside)
        inside = int(launch.in_graph)
        return Times(n_bytes, operations, inside, 1 - inside, busy, 0.0 if inside else assumed.host)

    def _work(self, launch: Launch, batch: StepBatch) -> tuple[float, float, float]:
        """Bytes and operations of a launch, and the share of the data sheet's rate that it reaches."""
        if launch.name in BESIDE_PAGES:
            n_bytes = 2.0 * launch.arguments[BESIDE_PAGES[launch.name]].nbytes
            if not launch.name.startswith("attend"):
                return n_bytes, 0.0, ARITHMETIC_SHARE
            width, (keys, pairs) = self.config.head_dim * 4, _visible(launch, batch)
            n_bytes += keys * self.config.n_kv_heads * width
            return n_bytes, float(pairs * self.config.n_heads * width), self.assumed.attention_share
        rate = self.assumed.fp8_rate if launch.name == "_scaled_mm" else 1.0
        return launch.n_bytes, _operations(launch), ARITHMETIC_SHARE * rate

    def _walked(self, launch: Launch, batch: StepBatch) -> float:
        """Seconds of the program of `attend_parts` with the greatest number of passes."""
        if launch.name != "attend_parts":
            return 0.0
        split, rounds = launch.arguments["SPLIT"], -(-max(_parts(launch, batch)) // launch.grid[2])
        return rounds * split / launch.arguments["KEYS"] * self.assumed.walk

    def _idle(self, launch: Launch, batch: StepBatch) -> float:
        """Seconds of the programs of `attend_parts` that find nothing to do."""
        if launch.name != "attend_parts":
            return 0.0
        busy = sum(min(n, launch.grid[2]) for n in _parts(launch, batch)) * launch.grid[1]
        return (prod(launch.grid) - busy) * self.assumed.idle / (self.card.multiprocessors * self.assumed.resident)


BESIDE_PAGES = {"write": "qkv", "attend_parts": "q", "attend_tiles": "q", "join": "out"}
"""Kernels of attention, and the tensor that each reads and writes besides keys, values and sums of parts."""
SORTS = ("sort", "topk")
FACTORS = {"mm": 0, "_scaled_mm": 0, "addmm_": 1}
"""Matrix products, and the place of the left factor among their tensors; the right one is next."""


def _operations(launch: Launch) -> float:
    if launch.name == "_product":
        return 2.0 * len(launch.arguments["x"]) * launch.arguments["n_in"] * launch.arguments["n_total"]
    if launch.name not in FACTORS:
        return 0.0
    left, right = launch.tensors[FACTORS[launch.name] :][:2]
    return 2.0 * left.numel() * right.shape[-1]


def _reread(launch: Launch) -> float:
    """Bytes of x that the programs of a product read, each for its own outputs."""
    if launch.name != "_product":
        return 0.0
    return float(prod(launch.grid) * launch.arguments["ROWS"] * launch.arguments["n_in"] * HALF)


def _visible(launch: Launch, batch: StepBatch) -> tuple[int, int]:
    """Keys that a launch reads at least, and its pairs of a query and a key."""
    slices = _slices(launch, batch)
    return sum(item.stop for item in slices), sum(_pairs(item.start, item.stop) for item in slices)


def _slices(launch: Launch, batch: StepBatch) -> list[Slice]:
    """The slices of which a launch computes the attention: short ones or longer ones."""
    short, limit = launch.name == "attend_parts", launch.arguments["SHORT"]
    return [item for item in batch.slices if (item.stop - item.start <= limit) == short]


def _pairs(start: int, stop: int) -> int:
    return (stop * (stop + 1) - start * (start + 1)) // 2


def _parts(launch: Launch, batch: StepBatch) -> list[int]:
    """The number of parts of each short slice."""
    return [-(-item.stop // launch.arguments["SPLIT"]) for item in _slices(launch, batch)]


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
HOST_STEP, HOST_SEQUENCE = 0.2e-3, 27e-6
"""Seconds of Python for a step, and for each of its sequences: plan, pack, commit, encode (`benchmarks.host`)."""
HALF = 2
"""Bytes of an activation."""
MEMORY = 2**36
"""Bytes of keys and values: no estimate depends on them."""


def estimate(card: Card, scheme: str, cases: Sequence[Case], assumed: Assumptions) -> Iterator[tuple[Case, Times]]:
    """The times of each case."""
    for length in dict.fromkeys(case.length for case in cases):
        config = replace(MISTRAL_7B, max_position=length)
        with absent.absent(card.capability) as recorder:
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
