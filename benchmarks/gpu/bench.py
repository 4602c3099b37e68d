"""What the rows of `benchmarks.gpu` share: the loaded network, a clock, and the form of a row."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu import engine
from benchmarks.gpu.shapes import Shapes
from model.config.model import ModelConfig
from model.step.runner import ModelRunner

Measured = dict[str, Any]
"""`value` in `unit`. A row with a floor also has the `units` for which at least `bytes` or `flops` are needed. A `note`
stands in the last column."""


class Bench:
    """The device and the network that is loaded on it, one at a time."""

    def __init__(self, shapes: Shapes, device: torch.device, options: Mapping[str, Any]) -> None:
        self.shapes = shapes
        self.device = device
        self.options = dict(options)  # options of Noria's runner, besides those of a row
        self._loaded: tuple[tuple[ModelConfig, str, int], ModelRunner] | None = None

    def runner(self, scheme: str = "none", config: ModelConfig | None = None, length: int = 0) -> ModelRunner:
        """The network of `config`, or the dense one, for sequences of `length` tokens, or the longest of the shapes.

        Only the dense one starts in full. In the others the first steps, which do not count, compile and capture.
        """
        config, length = config or self.shapes.dense, length or self.shapes.length
        key = config, scheme, length
        if self._loaded is None or self._loaded[0] != key:
            self.forget()
            fast = self.device.type == "cuda" and (config, scheme) != (self.shapes.dense, "none")
            options = {"fast_start": fast} | self.options | {"quantize": scheme}
            self._loaded = key, engine.load(config, self.device, self.shapes, length, **options)
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
