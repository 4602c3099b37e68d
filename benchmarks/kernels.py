"""Times of the compiled kernels, also against another revision: `python -m benchmarks.kernels [--against REV]`.

`--scheme` may also be nvfp4 or mxfp4, for a checkpoint in such weights. `--beside SCHEME` compares with another one.

A case calls all projections of one kind in SmolLM2-135M's 30 layers, one after the other: weights then come from
memory, as in a step. The cases of attention do the same over keys in scattered pages. With --against, the kernels of
that revision are built in a temporary worktree. Both revisions run in processes of their own, and alternate call by
call. The exit code is 1 if, for any case, the ratio of the least time now to the least time of REV is above --limit.
REV must have the present interfaces.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from model.attention import choose
from model.attention.rope import RopeRows
from model.batch import PageTable, Slice, StepBatch
from model.checkpoint.stored import Stored
from model.kernels.cpu import native
from model.kernels.groups import MXFP4_GROUP, NVFP4_GROUP
from model.linear.base import Projection
from model.linear.selection import make_linear
from model.sampling_params import SamplingParams
from model.step.packing import pack

ROOT = Path(__file__).parents[1]
HEADS, KV_HEADS, HEAD_DIM, LAYERS = 9, 3, 64, 30
SHAPES = {"wqkv": (576, 960), "wo": (576, 576), "w13": (576, 3072), "w2": (1536, 576), "head": (576, 49152)}
ROWS = (1, 8, 32, 512)
ATTENTION = ((1, 256), (8, 160), (64, 160), (32, 256), (32, 1024))
"""The number of streams, and of keys of each, for which one token is computed."""
FP4 = {"nvfp4": (NVFP4_GROUP, 0x30), "mxfp4": (MXFP4_GROUP, 120)}
"""Channels of a group, and the least of the scales here."""
LEAST_SECONDS = 0.02
"""Seconds for which a measurement repeats its call, at least."""


def cases(scheme: str) -> dict[str, Callable[[], object]]:
    """The timed functions by case; each makes one call."""
    found: dict[str, Callable[[], object]] = {}
    for name, (n_in, n_out) in SHAPES.items():
        projections = [projection(n_in, n_out, scheme) for _ in range(1 if name == "head" else LAYERS)]
        for rows in ROWS[: 3 if name == "head" else None]:
            found[f"{name} {rows}"] = multiply(projections, torch.randn(rows, n_in))
    for streams, context in ATTENTION:
        found[f"attention {streams} x {context}"] = attention(streams, context, context + 1)
    found["attention chunk 512"] = attention(1, 0, 512)
    return found


def projection(n_in: int, n_out: int, scheme: str) -> Projection:
    made: Any = make_linear(n_in, n_out, scheme="int8" if scheme in FP4 else scheme)
    made.take(0, weights(n_out, n_in, scheme))
    return made


def weights(n_out: int, n_in: int, scheme: str) -> Stored:
    """Random weights, as a checkpoint has them that is served in the scheme."""
    if scheme not in FP4:
        return Stored(torch.randn(n_out, n_in) / n_in**0.5)
    group, first = FP4[scheme]
    codes = torch.randint(0, 256, (n_out, n_in // 2), dtype=torch.uint8)
    scales = torch.randint(first, first + 8, (n_out, n_in // group), dtype=torch.uint8)
    return Stored(codes, "fp4", scales, group, factor=n_in**-0.5)


def multiply(projections: list[Projection], x: torch.Tensor) -> Callable[[], object]:
    def call() -> None:
        for one in projections:
            one(x)

    return call


def attention(streams: int, start: int, stop: int) -> Callable[[], object]:
    """Positions start..stop-1 of every stream, over pages in random order, in bfloat16."""
    cpu = torch.device("cpu")
    _, backend = choose("auto", cpu, torch.bfloat16, kernels=native.needed())
    blocks = -(-stop // backend.page_size)
    caches = [backend.allocate((streams * blocks, KV_HEADS, HEAD_DIM), torch.bfloat16, cpu) for _ in range(LAYERS)]
    for part in caches:
        part.k.normal_()
        part.v.normal_()
    pages = torch.randperm(streams * blocks).view(streams, blocks).tolist()
    params = SamplingParams(max_tokens=1)
    slices = (
        Slice(number, [0] * stop, stop, start, stop, (PageTable(0, table),), params)
        for number, table in enumerate(pages)
    )
    inputs = pack(StepBatch(tuple(slices)), backend.page_size, [None], cpu)
    prepared = backend.prepare(inputs.pools[0])
    rows = streams * (stop - start)
    qkv = torch.randn(rows, HEADS + 2 * KV_HEADS, HEAD_DIM)
    rope = RopeRows(torch.randn(rows, 2, HEAD_DIM // 2), None)
    in_order = cycle(caches)
    return lambda: backend.attend(qkv, HEADS, rope, next(in_order), prepared)


def seconds(call: Callable[[], object]) -> float:
    """Mean seconds of one call."""
    began, calls = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < LEAST_SECONDS:
        call()
        calls += 1
    return took / calls


@torch.inference_mode()
def answer(scheme: str) -> None:
    """The measuring process: it prints the names of its cases, then reads names and prints the seconds of each."""
    torch.manual_seed(0)
    known = cases(scheme)
    for call in known.values():
        call()
    print(json.dumps([*known]), flush=True)
    for line in sys.stdin:
        print(seconds(known[line.strip()]), flush=True)


class Measurer:
    """A process that runs `script`, this file or one with the same --answer, on the kernels of one source tree."""

    def __init__(self, tree: Path, scheme: str, script: str) -> None:
        command = [sys.executable, "-P", script, "--answer", "--scheme", scheme]
        environment = os.environ | {"PYTHONPATH": str(tree)}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.cases: list[str] = json.loads(self._ask(""))

    def seconds(self, case: str) -> float:
        return float(self._ask(f"{case}\n"))

    def _ask(self, question: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(question)
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"the measuring process ended with code {self._process.wait()}")
        return line

    def end(self) -> None:
        self._process.communicate()


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """The sources of a revision with their kernels built; the context deletes them at its end."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            subprocess.run([sys.executable, "-m", "model.kernels.cpu.build"], cwd=tree, check=True, capture_output=True)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def measure(measurers: list[Measurer], repeat: int) -> dict[str, list[float]]:
    """Case -> the least seconds of each measurer, because other programs only add time. The first one alternates."""
    names = [case for case in measurers[0].cases if all(case in one.cases for one in measurers)]
    found: dict[str, list[list[float]]] = {case: [[] for _ in measurers] for case in names}
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for number in progress.track(range(repeat), description="rounds"):
            for case in names:
                pairs = list(zip(measurers, found[case], strict=True))
                for measurer, results in pairs[:: -1 if number % 2 else 1]:
                    results.append(measurer.seconds(case))
    return {case: [min(times) for times in results] for case, results in found.items()}


def table(found: dict[str, list[float]], against: str | None, limit: float) -> Table:
    result = Table("microseconds", "now", *([against, "ratio"] if against else []))
    for column in result.columns[1:]:
        column.justify = "right"
    for case, results in found.items():
        cells = [f"{1e6 * seconds:.0f}" for seconds in results]
        if against:
            ratio = results[0] / results[1]
            cells.append(f"{ratio:.2f}" + (" slower" if ratio > limit else ""))
        result.add_row(case, *cells)
    return result


def compare(description: str | None, script: str, answer: Callable[[str], None]) -> None:
    """The command line of a benchmark whose `answer(scheme)` times the cases, here and in the tree of --against."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REV", help="git revision to compare with")
    parser.add_argument("--limit", type=float, default=1.10, help="greatest ratio that is no regression")
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--scheme", default="int8")
    parser.add_argument("--beside", metavar="SCHEME", help="scheme to compare with, instead of --against")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        answer(args.scheme)
        return
    with ExitStack() as stack:
        pairs = [(ROOT, args.scheme)]
        if args.against:
            pairs.append((stack.enter_context(worktree(args.against)), args.scheme))
        elif args.beside:
            pairs.append((ROOT, args.beside))
        measurers = [Measurer(tree, scheme, script) for tree, scheme in pairs]
        found = measure(measurers, args.repeat)
        for measurer in measurers:
            measurer.end()
    other = args.against or args.beside
    Console().print(table(found, other, args.limit))
    if other and any(now / then > args.limit for now, then in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    compare(__doc__, __file__, answer)
