"""What LoRA adapters cost a step on a CPU: `python -m benchmarks.lora [--model embedded|large] [--repeats 200]`.

A step is that of rows that decode after 256 tokens, or of a prompt of 512 tokens. Scheduling is not in it.
Adapters have all seven projections of a layer. Row i uses adapter i modulo 8. Steps without
and with adapters take turns. Times are the least of all repeats; the ratio is the median of the ratios of neighbours.
"large" is Mistral 7B's shape with 4 of its 32 layers. On a busy machine use --clock processor with OMP_NUM_THREADS=1,
which counts the time of the one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import engine
from benchmarks.gpu.shapes import MISTRAL_7B
from benchmarks.random_weights import checkpoint, random_adapter
from model.batch import PageTable, Slice, StepBatch
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner

CPU = torch.device("cpu")
RANKS, ROWS, ADAPTERS, CONTEXT, PROMPT = (8, 16, 64), (1, 8, 32), 8, 256, 512
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "processor": time.thread_time}
LARGE = replace(MISTRAL_7B, n_layers=4, windows=(4096,) * 4)


def batch(runner: ModelRunner, rows: int, length: int, start: int) -> StepBatch:
    """`rows` sequences whose positions start..length-1 are to be computed, each with pages of its own."""
    pages = -(-length // runner.info.page_size)
    slices = []
    for i in range(rows):
        table = PageTable(0, range(i * pages, (i + 1) * pages))
        tokens = [(100 + 7 * (i + j)) % runner.info.vocab_size for j in range(length)]
        slices.append(Slice(i, tokens, length, start, length, (table,) * len(runner.info.pools), SamplingParams()))
    return StepBatch(tuple(slices))


def step(runner: ModelRunner, work: StepBatch) -> Callable[[int], None]:
    """A function that computes `work`, whose slice i uses adapter i modulo their number, or none."""

    def compute(n_adapters: int) -> None:
        numbers = [1 + i % n_adapters if n_adapters else 0 for i in range(len(work.slices))]
        pairs = zip(work.slices, numbers, strict=True)
        runner.step(StepBatch(tuple(item._replace(adapter=number) for item, number in pairs)))

    return compute


def measure(compute: Callable[[int], None], n_adapters: int, repeats: int, clock: Clock) -> tuple[float, ...]:
    """Least ms without and with adapters, and the median ratio of two neighbours."""

    def seconds(used: int) -> float:
        started = clock()
        compute(used)
        return clock() - started

    pairs = [(seconds(0), seconds(n_adapters)) for _ in range(repeats)]
    base, adapted = (1000 * min(column) for column in zip(*pairs, strict=True))
    return base, adapted, statistics.median(after / before for before, after in pairs)


def cases(runner: ModelRunner, repeats: int, clock: Clock) -> Iterator[tuple[str, tuple[float, ...]]]:
    for rank in RANKS:
        for number in range(1, ADAPTERS + 1):
            runner.adapters.hold(number, random_adapter(runner.head.model.config, rank, CPU).pack())
        for rows in ROWS:
            compute = step(runner, batch(runner, rows, CONTEXT + 1, CONTEXT))
            yield (
                f"rank {rank}, {rows} rows of {min(rows, ADAPTERS)} adapters",
                measure(compute, min(rows, ADAPTERS), repeats, clock),
            )
        prompt = step(runner, batch(runner, 1, PROMPT, 0))
        yield f"rank {rank}, prompt of {PROMPT}", measure(prompt, 1, max(3, repeats // 20), clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("embedded", "large"), default="embedded")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--repeats", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.model == "embedded":
        runner = engine.load(quantize="int8", max_model_len=1024, max_loras=ADAPTERS)
    else:
        options = RunnerOptions(model=".", quantize="int8", max_sequences=32, max_model_len=1024)
        runner = load_from(checkpoint(LARGE, CPU), options, lambda stage, done: None)
    table = Table("step", "ms without", "ms with", "difference", "ratio")
    for name, (base, adapted, ratio) in cases(runner, args.repeats, CLOCKS[args.clock]):
        table.add_row(name, f"{base:.2f}", f"{adapted:.2f}", f"{adapted - base:.2f}", f"{ratio:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
