"""Pages from the disk: `python -m benchmarks.prefix_store [--model M | --layers 4] [--tokens 6000]`.

The second turn of a conversation after a restart: how many tokens it computes, and its time to the first token from the
disk, from memory, and computed anew. Then the times between tokens of 32 streams without a store, with one that writes
the pages that their steps evict, and with one that reads a long prompt meanwhile, in turns. --layers serves random
weights with the sizes of Mistral 7B.
"""

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import replace
from itertools import chain, count, pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.chunks import percentile
from benchmarks.gpu.shapes import MISTRAL_7B
from benchmarks.random_weights import checkpoint
from model.checkpoint.embedded import embedded_gguf
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.checkpoint.resolve import EMBEDDED, resolve
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.loop import EngineLoop, Message
from service.engine.messages import FromEngine, Report, Stop, Submit
from service.engine.prefixes.files import folders, page_files
from service.engine.prefixes.store import PrefixStore, open_store
from service.engine.scheduling.scheduler import Scheduler

NEW_TOKENS = 32
"""Tokens of the second turn's question."""
N_STREAMS, STREAM_TOKENS, LONG = 32, 200, 4000
STREAMED = N_STREAMS * (STREAM_TOKENS + 100) + LONG
"""Tokens of a cache that 32 streams and a long prompt fill."""
WAIT = 120.0


class Answered(NamedTuple):
    """The first token came after `first` seconds. `gaps` are the seconds between two steps that gave tokens."""

    first: float
    cached: int
    from_disk: int
    gaps: list[float]


class Engine:
    """A scheduler over a runner: with a new one nothing is in memory, as after a restart."""

    def __init__(self, runner: ModelRunner, *, stores: bool) -> None:
        self._runner = runner
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self.store: PrefixStore | None = None
        if stores:
            self.store = open_store(runner.info, runner.pages, lambda: self._inbox.put(lambda scheduler: None))
        info = runner.info
        self.scheduler = Scheduler(
            info, max_sequences=info.max_sequences, max_step_tokens=info.max_step_tokens, store=self.store
        )

    def serve(self, prompts: list[list[int]], n_tokens: int, salt: str = "", late: list[int] | None = None) -> Answered:
        """Serve requests that come together, and one more prompt, `late`, in the middle of their answers."""
        left = len(prompts) + (late is not None)
        started, cached, from_disk = time.perf_counter(), 0, 0
        times: list[float] = []

        def submit(number: int, prompt: list[int], n_tokens: int) -> None:
            params = SamplingParams(temperature=0.0, max_tokens=n_tokens, prompt_lookup_num_tokens=0)
            self._inbox.put(Submit(number, [*prompt], params, cache_salt=salt))

        def send(message: FromEngine) -> None:
            nonlocal cached, from_disk, left
            assert isinstance(message, Report)
            if any(update.tokens for update in message.updates):
                times.append(time.perf_counter())
                if late is not None and len(times) == n_tokens // 2:
                    submit(len(prompts), late, 1)
            for update in message.updates:
                assert update.finish != "error"
                if update.admitted is not None:
                    cached, from_disk = cached + update.admitted.cached, from_disk + update.admitted.from_disk
                left -= update.finish is not None
            if not left:
                self._inbox.put(Stop())

        for number, prompt in enumerate(prompts):
            submit(number, prompt, n_tokens)
        EngineLoop(self._runner, self.scheduler, self._receive, send).run()
        gaps = [after - before for before, after in pairwise(times)]
        return Answered(times[0] - started, cached, from_disk, gaps)

    def _receive(self, block: bool) -> list[Message]:
        messages = [self._inbox.get()] if block else []
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages


def tokens(number: int, n: int, vocab_size: int) -> list[int]:
    return [1000 + (7919 * number + 31 * i * i) % (min(vocab_size, 30_000) - 1000) for i in range(n)]


def forget(directory: Path) -> None:
    """Write the files to the disk and drop them from the system's memory."""
    for folder in folders(directory):
        for file in page_files(folder):
            descriptor = os.open(file.path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def second_turn(runner: ModelRunner, directory: Path, n_tokens: int, runs: int) -> Table:
    """The table of the second turn of a conversation."""
    vocab = runner.info.vocab_size
    prompt = tokens(0, n_tokens, vocab)
    first = Engine(runner, stores=True)
    first.serve([prompt], 1)
    first.scheduler.save_pages(WAIT)
    turns = (prompt + tokens(number, NEW_TOKENS, vocab) for number in count(1))
    found: dict[str, list[Answered]] = {"disk, files not in memory": [], "disk, files in memory": [], "memory": []}
    for _ in range(runs):
        forget(directory)
        for label in found:
            if label != "memory":
                engine = Engine(runner, stores=True)
            found[label].append(engine.serve([next(turns)], 1))
    found["computed"] = [Engine(runner, stores=False).serve([next(turns)], 1, salt="new") for _ in range(runs)]
    table = Table("second turn from", "computed tokens", "from the disk", "first token: median", "slowest")
    for label, answers in found.items():
        computed = {n_tokens + NEW_TOKENS - answer.cached for answer in answers}
        times = [answer.first for answer in answers]
        slowest = f"{1000 * max(times):.0f} ms"
        disk = str(max(answer.from_disk for answer in answers))
        table.add_row(label, str(max(computed)), disk, f"{1000 * statistics.median(times):.0f} ms", slowest)
    return table


def streams(runner: ModelRunner, runs: int) -> Table:
    """The table of streams. They take the pages of prompts that are not saved; with a store that reads, free ones."""
    size, n_pages, vocab = runner.info.page_size, runner.info.pools[0].n_pages, runner.info.vocab_size
    long = tokens(99, LONG, vocab)
    first = Engine(runner, stores=True)
    first.serve([long], 1)
    first.scheduler.save_pages(WAIT)
    gaps: dict[str, list[list[float]]] = {"no store": [], "the store writes": [], "the store reads": []}
    moved: dict[str, set[str]] = {label: set() for label in gaps}
    for run in range(runs):
        for label, found in gaps.items():
            engine, reads = Engine(runner, stores=label != "no store"), label == "the store reads"
            salt = "" if reads else f"{run} {label}"
            if not reads:
                for part in range(4):
                    engine.serve([tokens(100 + 10 * run + part, (n_pages - 1) * size // 4, vocab)], 1, salt=salt)
            prompts = [tokens(1000 * (run + 1) + number, size + number, vocab) for number in range(N_STREAMS)]
            late = [*long, *tokens(run, NEW_TOKENS, vocab)] if reads else None
            answered = engine.serve(prompts, STREAM_TOKENS, salt, late)
            found.append(answered.gaps[N_STREAMS:])
            if engine.store is not None:
                engine.store.finish(WAIT)
                counts = engine.store.counts
                read = f"{answered.from_disk // size} read, " if reads else ""
                moved[label].add(f"{read}{counts['pages_written']} written, {counts['pages_dropped']} dropped")
    table = Table("32 streams", "p50 between tokens", "p99", "p99 of each run", "to no store, median", "pages of a run")
    for label, found in gaps.items():
        every = [*chain.from_iterable(found)]
        middle, slow = (f"{1000 * percentile(every, part):.1f} ms" for part in (0.5, 0.99))
        each = [percentile(run_gaps, 0.99) for run_gaps in found]
        ratios = [own / percentile(other, 0.99) for own, other in zip(each, gaps["no store"], strict=True)]
        shown = ", ".join(f"{1000 * value:.1f}" for value in each)
        table.add_row(label, middle, slow, shown, f"{statistics.median(ratios):.2f}", "; ".join(moved[label]))
    return table


def source_of(args: argparse.Namespace, n_tokens: int) -> tuple[Path, Checkpoint]:
    """The model, for contexts of `n_tokens`. Random weights have the place of the embedded ones, which is not read."""
    if not args.layers:
        place = resolve(args.model)
        return place, open_checkpoint(place, max_model_len=n_tokens)
    windows = (None,) * args.layers
    config = replace(MISTRAL_7B, n_layers=args.layers, windows=windows, max_position=n_tokens)
    return embedded_gguf(), checkpoint(config, torch.device("cpu"))


def loaded(args: argparse.Namespace, directory: Path, n_tokens: int, cached_tokens: int) -> ModelRunner:
    """A runner for contexts of `n_tokens`, whose cache holds `cached_tokens`."""
    place, source = source_of(args, n_tokens)
    config = source.config
    cache = cached_tokens * 2 * 2 * config.n_layers * config.n_kv_heads * config.head_dim  # keys and values, bfloat16
    options = RunnerOptions(str(place), max_model_len=n_tokens, cache_memory=cache, prefix_store=str(directory))
    return load_from(source, options, lambda stage, done: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--layers", type=int, default=0, help="layers of random weights with the sizes of Mistral 7B")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", help="where the pages go; a folder in it is made and removed")
    parser.add_argument("--only", choices=("turn", "streams"))
    args = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="noria-pages-", dir=args.directory) as folder:
        directory, length = Path(folder), args.tokens + NEW_TOKENS + 64
        if args.only != "streams":
            runner = loaded(args, directory, length, 2 * length)
            console.print(f"{runner.pages.page_bytes(0) / 2**10:.0f} KiB a page of {runner.info.page_size} tokens")
            console.print(second_turn(runner, directory, args.tokens, args.runs))
        if args.only != "turn":
            console.print(streams(loaded(args, directory, LONG + 96, STREAMED), args.runs))


if __name__ == "__main__":
    main()
