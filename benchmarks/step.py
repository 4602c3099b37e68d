"""Time of each part of a step, against its floor: `python -m benchmarks.step [MODEL] [--scheme int8]`.

The parts are timed from outside, by wrapping their callables. For that, the layers are called part by part. In the
server all of a step may be one call of the kernels, which the last lines show. The floor of a projection is the greater
of two times. One reads its weights at the memory bandwidth, measured over up to 1 GiB before and after each column.
The other computes its multiply-adds at the best rate of any projection with 512 rows, whose results go to memory that
was used before. Of experts those are read that the rows choose on the average. The floor of attention reads the keys
and values, or computes its multiply-adds at the same rate. The share is the floor of all parts, over the time of the
step as served.

The models "small-4" and "seven-b" have random weights, and the sizes of Mistral Small 4 and Mistral 7B with two layers.

Long contexts: `--rows 1,8 --context 4096,8192`, and before a chunk of a prompt `--before 0,4096`. Where context and new
tokens are more than the model takes, the context is shorter, as the head of the column says.

`--json FILE` writes the seconds of all parts and floors.
"""

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks import engine, machine, random_weights
from benchmarks.gpu.shapes import MISTRAL_7B, SMALL_4
from model.checkpoint.resolve import EMBEDDED
from model.config.model import ModelConfig
from model.kernels.cpu import native
from model.linear.base import Projection
from model.loading import load_from
from model.machine.host import choose_threads
from model.network.latent import HeadProducts
from model.network.moe import MoE
from model.options import RunnerOptions
from model.step import packing, sampler
from model.step.runner import ModelRunner
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler

CHUNK = 512
RANDOM = {"small-4": SMALL_4, "seven-b": replace(MISTRAL_7B, n_layers=2, windows=(4096,) * 2)}
"""Models of random weights: two layers."""
MOST_READ = 2**30
"""Bytes over which the memory bandwidth is measured at most."""
AROUND = ("plan", "pack", "embed, table, layers' Python", "attention", "sample", "commit")
"""Parts of a step that are no products of weights."""


class Clock:
    """A clock of seconds by part. The time of a part does not include the parts that it calls."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    def wrap(self, owner: Any, attribute: str, part: str) -> None:
        """Time `owner.attribute` from now on."""
        call = getattr(owner, attribute)

        def timed(*arguments: Any, **options: Any) -> Any:
            self._inside.append(0.0)
            started = time.perf_counter()
            result = call(*arguments, **options)
            took = time.perf_counter() - started
            self._seconds[part] += took - self._inside.pop()
            self._inside[-1] += took
            return result

        setattr(owner, attribute, timed)

    def take(self) -> dict[str, float]:
        """The seconds since the last call."""
        taken, self._seconds = self._seconds, defaultdict(float)
        return taken


@dataclass(frozen=True, slots=True)
class Kind:
    """All products of one name: the bytes of their weights, and the multiply-adds of a row.

    Among them are `n_expert_bytes` of experts, of which a row reads the share `chosen`.
    """

    n_bytes: int
    macs: float
    n_expert_bytes: int = 0
    chosen: float = 0.0

    def read(self, rows: int) -> float:
        """Bytes that a step of so many rows reads, whose experts are independent."""
        return self.n_bytes - self.n_expert_bytes * (1 - self.chosen) ** rows


def products(runner: ModelRunner) -> Iterator[tuple[str, Projection | HeadProducts | MoE]]:
    """Products by the names of their parts. Experts are one, with their gate."""
    blocks: list[str] = []
    for name, module in runner.head.model.named_modules():
        if name.startswith(tuple(blocks)):
            continue
        if isinstance(module, MoE):
            blocks.append(f"{name}.")
            yield "experts", module
        elif isinstance(module, Projection | HeadProducts):
            yield name.rpartition(".")[2].replace("output", "head"), module


def kinds(runner: ModelRunner) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for name, product in products(runner):
        one, before = kind_of(product), found.get(name, Kind(0, 0))
        found[name] = Kind(
            before.n_bytes + one.n_bytes, before.macs + one.macs, before.n_expert_bytes + one.n_expert_bytes, one.chosen
        )
    return found


def kind_of(product: Projection | HeadProducts | MoE) -> Kind:
    if isinstance(product, HeadProducts):
        return Kind(n_bytes(vars(product)), sum(part.n_in * part.n_out for part in product.packed))
    size, macs = sizes(product)
    if isinstance(product, Projection):
        return Kind(size, macs)
    of_experts, chosen = sizes(product.experts), product.n_used / product.n_experts
    return Kind(size, macs - (1 - chosen) * of_experts[1], of_experts[0], chosen)


def sizes(module: nn.Module) -> tuple[int, int]:
    """Bytes and numbers of the weights of all projections inside."""
    found = [part for part in module.modules() if isinstance(part, Projection)]
    return n_bytes([vars(part) for part in found]), sum(part.n_in * part.n_out for part in found)


def n_bytes(value: Any) -> int:
    """The number of bytes of all tensors in nested containers."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if is_dataclass(value) and not isinstance(value, native.Kernels):
        return sum(n_bytes(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, dict):
        value = value.values()
    return sum(map(n_bytes, value)) if isinstance(value, tuple | list | type({}.values())) else 0


def best(call: Callable[[], Any], repeats: int = 20) -> float:
    """The least seconds of one call."""

    def once() -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    return min(once() for _ in range(repeats))


def bandwidth(size: int, threads: int) -> float:
    """Bytes/s of reading `size` bytes: every thread computes the dot product of its part with itself."""
    parts = np.array_split(np.ones(size // 4, dtype=np.float32), threads)
    with ThreadPoolExecutor(threads) as pool:
        return size / best(lambda: list(pool.map(lambda part: part.dot(part), parts)))


def rate(runner: ModelRunner) -> float:
    """Multiply-adds/s, the best of the kinds of projection."""
    dtype, found = runner.head.model.norm.weight.dtype, []
    for product in dict(products(runner)).values():
        if not isinstance(product, Projection):
            continue
        x = torch.randn(CHUNK, product.n_in).to(dtype)
        y = torch.zeros(CHUNK, product.n_out).to(dtype)  # new memory would be cleared by the system, page by page
        found.append(CHUNK * product.n_in * product.n_out / best(lambda: product(x, onto=y), 10))  # noqa: B023
    return max(found)


def wrap(clock: Clock, runner: ModelRunner) -> None:
    clock.wrap(packing, "pack", "pack")
    clock.wrap(sampler, "sample", "sample")
    clock.wrap(runner.head.model, "forward", AROUND[2])
    for name, product in products(runner):
        clock.wrap(product, "forward", name)
        if isinstance(product, Projection):
            clock.wrap(product, "gated", name)


@dataclass(frozen=True, slots=True)
class Shape:
    """`rows` sequences that each decode after `length` tokens, `n_tokens` each; or (rows 0) chunks after `length`."""

    rows: int
    length: int
    n_tokens: int

    @property
    def name(self) -> str:
        if self.rows:
            return f"{self.rows} x {self.length}"
        return f"chunk of {CHUNK}" + (f" after {self.length}" if self.length else "")

    @property
    def step_tokens(self) -> int:
        return self.rows or CHUNK

    @property
    def seen(self) -> range:
        """How many keys the rows of a sequence see, itself included, without a window."""
        return range(self.length, self.length + 1) if self.rows else range(self.length + 1, self.length + CHUNK + 1)


def decoding(rows: int, context: int, n_steps: int, most: int) -> Shape:
    """Sequences of at most `most` tokens, as many of them before the decoded ones as fit, up to `context`."""
    joining = 2 * rows * context // engine.MAX_STEP_TOKENS  # steps until all decode
    n_tokens = 2 * n_steps + joining + 1  # the step that ends the prompt gives one too
    if n_tokens >= most:
        raise SystemExit(
            f"--steps {n_steps} after --context {context} decodes {n_tokens} tokens; {most} are a sequence's"
        )
    return Shape(rows, min(context, most - n_tokens), n_tokens)


def profile(runner: ModelRunner, clock: Clock, shape: Shape, n_steps: int) -> dict[str, float]:
    """Seconds by part of a step whose layers are called one by one, and "served": seconds of the step as it is served.

    Steps of both kinds run in turns. Means over the fastest quarter of each: the parts add up, and other programs
    disturb least.
    """
    scheduler = engine.scheduler_for(runner, max(shape.rows, 1))
    clock.wrap(scheduler, "plan", "plan")
    clock.wrap(scheduler, "commit", "commit")
    submit(runner, scheduler, shape, n_steps)
    served, layers = runner.executor, engine.by_layer(runner)
    clock.wrap(layers._attention, "prepare", "attention")
    clock.wrap(layers._attention, "attend", "attention")
    counted: list[list[dict[str, float]]] = [[], []]
    for number, step in enumerate(engine.steps(runner, scheduler)):
        parts = clock.take() | {"step": step.seconds}
        if step.batch.n_tokens == shape.step_tokens and step.batch.slices[0].start >= shape.length:
            counted[number % 2].append(parts)
        runner.executor = served if number % 2 else layers
    runner.executor = served
    whole, by_part = map(fastest, counted)
    every = (*AROUND, *dict(products(runner)), "step")
    return {part: mean(by_part, part) for part in every} | {"served": mean(whole, "step")}


def fastest(steps: list[dict[str, float]]) -> list[dict[str, float]]:
    """The fastest quarter."""
    return sorted(steps, key=lambda parts: parts["step"])[: max(1, len(steps) // 4)]


def mean(steps: list[dict[str, float]], part: str) -> float:
    return statistics.fmean(parts.get(part, 0.0) for parts in steps)


def submit(runner: ModelRunner, scheduler: Scheduler, shape: Shape, n_steps: int) -> None:
    """Prompts of chunks share their context, which is computed once and then reused."""
    tokens = range(100, runner.info.vocab_size - 100)
    shared, own = ([], shape.length) if shape.rows else (random.choices(tokens, k=shape.length), CHUNK)
    for number in range(shape.rows or 2 * n_steps):
        prompt = [*shared, *random.choices(tokens, k=own)]
        scheduler.submit(Submit(number, prompt, engine.greedy(shape.n_tokens)))


@dataclass(frozen=True, slots=True)
class Floor:
    """The best speed of the machine: bytes/s for as many bytes as the weights have, and multiply-adds/s."""

    bytes_per_second: float
    macs_per_second: float

    def seconds(self, runner: ModelRunner, shapes: dict[str, Kind], shape: Shape) -> dict[str, float]:
        """The least seconds by part. A chunk needs one row of the head."""
        rows = shape.rows or 1
        found = {
            name: max(
                kind.read(shape.step_tokens) / self.bytes_per_second,
                kind.macs * (rows if name == "head" else shape.step_tokens) / self.macs_per_second,
            )
            for name, kind in shapes.items()
        }
        slots = runner.info.pools[0].n_pages * runner.info.page_size
        slot_bytes = n_bytes([cache.halves for cache in runner.pages.layers]) / slots
        config, heads = runner.head.model.config, runner.head.model.config.heads
        macs = rows * sum(n_keys(config, n) for n in shape.seen) * heads.n_heads * (heads.head_dim + heads.value_dim)
        read = rows * n_keys(config, shape.seen[-1]) * slot_bytes / config.n_layers
        found["attention"] = max(read / self.bytes_per_second, macs / self.macs_per_second)
        return found


def n_keys(config: ModelConfig, n: int) -> int:
    """Keys that token number `n` of a sequence sees, itself included, in all layers together."""
    return sum(min(n, window or n) for window in config.windows)


def table(cases: dict[str, tuple[dict[str, float], dict[str, float]]]) -> Table:
    result = Table("ms (floor)", *cases)
    for column in result.columns[1:]:
        column.justify = "right"

    def cell(measured: float, least: float | None) -> str:
        return f"{1000 * measured:.2f} ({1000 * least:.2f})" if least else f"{1000 * measured:.2f}"

    parts = [part for part in next(iter(cases.values()))[0] if part not in ("step", "served")]
    for part in parts:
        result.add_row(part, *(cell(found[part], floor.get(part)) for found, floor in cases.values()))
    rest = [found["step"] - sum(found[part] for part in parts) for found, _ in cases.values()]
    result.add_row("rest", *(cell(value, None) for value in rest), end_section=True)
    result.add_row("step, part by part", *(cell(found["step"], None) for found, _ in cases.values()))
    result.add_row("step as served", *(cell(found["served"], sum(floor.values())) for found, floor in cases.values()))
    result.add_row("share", *(f"{sum(floor.values()) / found['served']:.0%}" for found, floor in cases.values()))
    return result


def load(model: str, scheme: str) -> ModelRunner:
    if model not in RANDOM:
        return engine.load(model, **engine.SCHEMES[scheme])
    options: dict[str, Any] = {"device": "cpu", "max_model_len": 32_768, "cache_memory": 2**28}
    options |= engine.SCHEMES[scheme]
    made = random_weights.checkpoint(RANDOM[model], torch.device("cpu"))
    with TemporaryDirectory() as empty:  # where a tokenizer is looked for
        return load_from(made, RunnerOptions(empty, **options), lambda stage, done: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--scheme", choices=engine.SCHEMES, default="int8")
    parser.add_argument("--rows", default="1,8,32,64", help="decoding sequences of a step, comma-separated")
    parser.add_argument("--context", default="256", help="tokens before the decoded ones, comma-separated")
    parser.add_argument("--before", default="0", help="tokens before the chunks of prompts, comma-separated")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the seconds of all parts and floors")
    args = parser.parse_args()
    threads = choose_threads()
    runner = load(args.model, args.scheme)
    shapes = kinds(runner)
    size = sum(kind.n_bytes for kind in shapes.values())
    macs_per_second = rate(runner)
    clock = Clock()
    wrap(clock, runner)
    rows, contexts, before_chunks = (
        list(map(int, given.split(","))) for given in (args.rows, args.context, args.before)
    )
    most = runner.info.max_model_len
    wanted = [decoding(n, context, args.steps, most) for context in contexts for n in rows]
    wanted += [Shape(0, min(context, most - CHUNK - 1), 1) for context in before_chunks]
    console = Console(width=None if Console().is_terminal else 140)
    console.print(f"{', '.join(machine.instruction_sets())}; {threads} threads; {runner.info.description}")
    console.print(f"weights of projections {size / 2**20:.0f} MiB; {macs_per_second / 1e9:.0f} G multiply-adds/s")
    with console.status("") as status:
        cases = {}
        for shape in wanted:
            status.update(shape.name)
            before = bandwidth(min(size, MOST_READ), threads)
            found = profile(runner, clock, shape, args.steps)
            floor = Floor(max(before, bandwidth(min(size, MOST_READ), threads)), macs_per_second)
            cases[f"{shape.name}, {floor.bytes_per_second / 1e9:.1f} GB/s"] = (
                found,
                floor.seconds(runner, shapes, shape),
            )
    console.print(table(cases))
    if args.json:
        args.json.write_text(
            json.dumps({case: {"seconds": found, "floor": least} for case, (found, least) in cases.items()})
        )


if __name__ == "__main__":
    main()
