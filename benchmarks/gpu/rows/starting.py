"""Rows of the start: seconds until every kernel and graph is there, and seconds from a checkpoint."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu import engine as gpu_engine
from benchmarks.gpu.bench import Bench, Measured
from benchmarks.random_weights import save
from model.loading import create


def ready(bench: Bench) -> Measured:
    """Seconds until all that serving can need is compiled and captured, with an empty cache of compiled kernels.

    The weights are random and made on the device. The note has the seconds of a second start, which finds the kernels.
    """
    with TemporaryDirectory() as folder, patch.dict(os.environ, TRITON_CACHE_DIR=folder):
        (cold, stages), (warm, _) = _start(bench), _start(bench)
    return {"value": cold, "unit": "s", "begun": stages, "note": f"{warm:.1f} s with compiled kernels"}


def _start(bench: Bench) -> tuple[float, dict[str, float]]:
    bench.forget()

    def load(progress: Callable[[str, float], None]) -> None:
        runner = gpu_engine.load(
            bench.shapes.dense, bench.device, bench.shapes, bench.shapes.length, progress, **bench.options
        )
        while runner.idle():  # what is left to capture after the start
            pass

    return _timed(load)


def start(bench: Bench) -> Measured:
    """Seconds from a checkpoint in the page cache, in Mistral's own format, to a runner that is ready."""
    with TemporaryDirectory() as folder:
        save(bench.shapes.dense, bench.device, Path(folder))
        bench.forget()
        options: dict[str, Any] = {"device": bench.device.type, "quantize": "none", **bench.options}
        seconds, stages = _timed(lambda progress: create(progress, model=folder, **options))
    return {"value": seconds, "unit": "s", "begun": stages}


def _timed(load: Callable[[Callable[[str, float], None]], object]) -> tuple[float, dict[str, float]]:
    """Seconds that `load` takes, and those at which each stage began."""
    stages: dict[str, float] = {}
    began = time.perf_counter()

    def progress(stage: str, done: float) -> None:
        stages.setdefault(stage, time.perf_counter() - began)

    load(progress)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began, stages
