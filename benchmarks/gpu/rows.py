"""The rows of `benchmarks.gpu`, and how each is measured. The result is plain data; a row that fails raises."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu import engine as gpu_engine
from benchmarks.gpu import peers as gpu_peers
from benchmarks.gpu.engine import Decoding
from benchmarks.gpu.shapes import Shapes, decode_bytes, prefill_flops
from benchmarks.random_weights import save
from model.loading import create
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner

Measured = dict[str, Any]
"""`value` in `unit`. A row with a floor also has the `units` for which at least `bytes` or `flops` are needed."""

TOLERANCE, MEAN_TOLERANCE = 0.25, 0.02
"""Limits of the greatest and of the mean difference of logprobs from reference attention, in bfloat16."""


CHECK_CACHE = 2**28


class Bench:
    """The device and the network that is loaded on it, one at a time."""

    def __init__(self, shapes: Shapes, device: torch.device, options: Mapping[str, Any]) -> None:
        self.shapes = shapes
        self.device = device
        self.options = dict(options)  # options of Noria's runner, besides those of a row
        self._loaded: tuple[str, ModelRunner] | None = None

    def runner(self, scheme: str, *, sparse: bool = False) -> ModelRunner:
        key = f"{scheme} {sparse}"
        if self._loaded is None or self._loaded[0] != key:
            self.forget()
            shapes = self.shapes
            config = shapes.sparse if sparse else shapes.dense
            length = shapes.prompt + 1024 if sparse else shapes.length
            length = min(length, config.max_position) if sparse else length
            options = self.options | {"quantize": scheme}
            self._loaded = key, gpu_engine.load(config, self.device, shapes, length, **options)
        return self._loaded[1]

    def forget(self) -> None:
        self._loaded = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def best(self, call: Callable[[], Any], repeats: int) -> float:
        """Median seconds of one call, after three calls to warm up. On a GPU, CUDA events measure the time."""
        for _ in range(3):
            call()
        return statistics.median(self._timed(call) for _ in range(repeats))

    def _timed(self, call: Callable[[], Any]) -> float:
        if self.device.type != "cuda":
            started = time.perf_counter()
            call()
            return time.perf_counter() - started
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000

    def peak(self) -> int | None:
        """The peak of allocated bytes since the last call."""
        if self.device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak


def copy(bench: Bench) -> Measured:
    """Bytes read and written by a copy within the device's memory."""
    source = torch.randint(0, 255, (bench.shapes.copy_bytes,), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds = bench.best(lambda: target.copy_(source), 4 * bench.shapes.repeats)
    return {"value": 2 * bench.shapes.copy_bytes / seconds, "unit": "B/s"}


def product(bench: Bench) -> Measured:
    """A large matrix product in bfloat16 of random numbers."""
    n = bench.shapes.matrix
    a, b = (torch.randn(n, n, device=bench.device).bfloat16() for _ in range(2))
    seconds = bench.best(lambda: torch.mm(a, b), 4 * bench.shapes.repeats)
    return {"value": 2 * n**3 / seconds, "unit": "FLOP/s"}


def correctness(bench: Bench) -> Measured:
    """Compare the default attention with the reference: logprobs of prompts, packed and in chunks, and of answers."""
    config = replace(bench.shapes.dense, n_layers=4, windows=(100, None) * 2, vocab_size=4096, max_position=1024)
    if config.dim > 1024:
        config = replace(config, dim=1024, n_heads=8, n_kv_heads=2, hidden_dim=2048)
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=0, prompt_logprobs=0)
    prompts = [gpu_engine.prompts(1, n, config.vocab_size)[0] for n in (1, 3, 99, 100, 101, 203, 330)]
    found = []
    for more in (bench.options, {"attention": "reference"}):
        shapes = replace(bench.shapes, streams=(1, 1, len(prompts)), step_tokens=160)
        options = {"quantize": "none", "cache_memory": CHECK_CACHE, **more}
        runner = gpu_engine.load(config, bench.device, shapes, 512, **options)
        found.append(_logprobs(runner, prompts, params))
    mine, theirs = found
    differences = [abs(a - b) for key, a in mine.items() if (b := theirs.get(key)) is not None]
    greatest, mean = max(differences), statistics.fmean(differences)
    if len(differences) < sum(map(len, prompts)) - len(prompts) or not (greatest < TOLERANCE and mean < MEAN_TOLERANCE):
        raise RuntimeError(f"logprobs of {len(differences)} tokens differ from reference attention's by {greatest:.3f}")
    return {"value": greatest, "unit": "nats", "mean": mean, "tokens": len(differences)}


Token = tuple[int, tuple[int, ...]]
"""The number of a sequence, and its answer so far or the position in its prompt."""


def _logprobs(runner: ModelRunner, prompts: list[list[int]], params: SamplingParams) -> dict[Token, float]:
    """Logprobs of every prompt token, and of every sampled token by the answer before it.

    Two results can be compared as long as the answers are equal.
    """
    found: dict[Token, float] = {}
    answers: dict[int, tuple[int, ...]] = {}
    scored: dict[int, int] = {}
    for seen in gpu_engine.serve(runner, prompts, params, 160):
        for update in seen.updates:
            for item in update.prompt_logprobs:
                scored[update.id] = scored.get(update.id, 0) + 1
                found[update.id, (-scored[update.id],)] = item.logprob
            for item in update.logprobs:
                answers[update.id] = (*answers.get(update.id, ()), item.token)
                found[update.id, answers[update.id]] = item.logprob
    return found


def _decode(streams: int, scheme: str = "none", *, sparse: bool = False) -> Callable[[Bench], Measured]:
    """The measurement of decoding. `streams` is an index of `Shapes.streams`."""

    def measure(bench: Bench) -> Measured:
        shapes, n = bench.shapes, bench.shapes.streams[streams]
        runner = bench.runner(scheme, sparse=sparse)
        steps = gpu_engine.decode(runner, shapes, n, shapes.prompt)
        config = shapes.sparse if sparse else shapes.dense
        return {
            "value": n / steps.median,
            "unit": "tok/s",
            "units": n,
            "bytes": decode_bytes(config, scheme, n, steps.context),
            **_steps(steps),
            "runner": runner.info.description,
        }

    return measure


def _steps(steps: Decoding) -> Measured:
    tenths = statistics.quantiles(steps.seconds, n=10, method="inclusive")
    mean = statistics.fmean(steps.seconds)
    times = {"median": steps.median, "mean": mean, "p10": tenths[0], "p90": tenths[-1]}
    return {
        "step_ms": {name: 1000 * value for name, value in times.items()},
        "steps": len(steps.seconds),
        "context": steps.context,
        "pages_held": steps.held,
    }


def prefill(bench: Bench) -> Measured:
    shapes = bench.shapes
    seconds = gpu_engine.prefill(bench.runner("none"), shapes)
    flops = prefill_flops(shapes.dense, shapes.prefill)
    return {"value": shapes.prefill / seconds, "unit": "tok/s", "units": shapes.prefill, "flops": flops}


def stream(bench: Bench) -> Measured:
    """Time and memory of a very long stream.

    Its last steps are compared with those of a stream whose window is just full. From the first full window on, the
    memory of the later half of its chunks is compared with that of the earlier half.
    """
    shapes, runner = bench.shapes, bench.runner("none")
    early = gpu_engine.decode(runner, shapes, 1, shapes.steady_tokens)
    bench.peak()
    late = gpu_engine.decode(runner, shapes, 1, shapes.stream, bench.peak)
    chunks = [one for one in late.seen if one.step_tokens == shapes.step_tokens][
        shapes.steady_tokens // shapes.step_tokens :
    ]
    halves = chunks[: len(chunks) // 2], chunks[len(chunks) // 2 :]
    memory, pages = (
        [max(map(of, half)) for half in halves] for of in (lambda one: one.memory or 0, lambda one: one.held)
    )
    return {
        "value": late.median / early.median,
        "unit": "x",
        "pages_grown": max(late.held - early.held, pages[1] - pages[0], 0),
        "bytes_grown": max(0, memory[1] - memory[0]),
        "memory": memory,
        "early": _steps(early),
        "late": _steps(late),
    }


def start(bench: Bench) -> Measured:
    """Seconds from a checkpoint in the page cache, in Mistral's own format, to a runner that is ready."""
    stages: dict[str, float] = {}
    began = time.perf_counter()

    def progress(stage: str, done: float) -> None:
        stages.setdefault(stage, time.perf_counter() - began)

    with TemporaryDirectory() as folder:
        save(bench.shapes.dense, bench.device, Path(folder))
        bench.forget()
        began = time.perf_counter()
        create(progress, model=folder, device=bench.device.type, quantize="none", **bench.options)
        seconds = time.perf_counter() - began
    return {"value": seconds, "unit": "s", "begun": stages}


def _peer(measure: Callable[[Shapes, torch.device], float]) -> Callable[[Bench], Measured]:
    return lambda bench: {"value": measure(bench.shapes, bench.device), "unit": "tok/s"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table. `goal` is the least share of the floor's speed; `limit` is the greatest allowed value.

    Rows of a `group` share a process. A row may be compared with the row `beside`; the goal for their ratio is to be
    `between` two numbers. A row with `only_by_name` takes long, and is only measured if --only names it.
    """

    name: str
    group: str
    measure: Callable[[Bench], Measured]
    goal: float | None = None
    limit: float | None = None
    beside: str | None = None
    between: tuple[float, float] = (0.0, math.inf)
    only_by_name: bool = False


COPY, PRODUCT, CHECK = "device copy", "bf16 product", "correctness"
ROWS = (
    Row(COPY, "ceilings", copy),
    Row(PRODUCT, "ceilings", product),
    Row(CHECK, "ceilings", correctness),
    Row("decode 1", "bf16", _decode(0), 0.85),
    Row("decode 64", "bf16", _decode(1), 0.75),
    Row("decode 256", "bf16", _decode(2), 0.70),
    Row("prefill 8k", "bf16", prefill, 0.60),
    Row("stream 200k", "bf16", stream, limit=1.05),
    Row("decode 1 fp8", "fp8", _decode(0, "fp8"), 0.80, beside="decode 1", between=(1.6, math.inf)),
    Row("decode 1 int4", "int4", _decode(0, "int4"), 0.65, beside="decode 1"),
    Row("mixtral decode 1", "mixtral", _decode(0, sparse=True), 0.75),
    Row("transformers static 1", "static", _peer(gpu_peers.static), beside="decode 1", between=(0.0, 1.0)),
    Row(
        "transformers continuous 64", "continuous", _peer(gpu_peers.continuous), beside="decode 64", between=(0.0, 1.0)
    ),
    Row("start 7b", "start", start, limit=15.0, only_by_name=True),
)
SECONDS = {
    "ceilings": 30,
    "bf16": 90,
    "fp8": 40,
    "int4": 40,
    "mixtral": 50,
    "static": 90,
    "continuous": 80,
    "start": 120,
}
"""Expected seconds of each group on an H200: a guess, not a measurement."""
