"""What --tune gains: `python -m benchmarks.tuning [MODEL] [--quantize int8] [--kv-dtype auto] [--seconds 3]`.

Loads the model with each value of --tune, without kept tiles, and runs steps of several sizes in turns. It prints the
least and the median time of a step for each value. The log says which tiles were chosen, and how long that took. The
model has one attention window.
"""

import argparse
import logging
import tempfile
import time
from collections.abc import Mapping
from statistics import median

import torch

from model.batch import PageTable, StepBatch
from model.checkpoint.resolve import EMBEDDED, resolve
from model.kernels.cpu.tuning import tuner
from model.loading import create
from model.options import TUNINGS
from model.step.runner import ModelRunner
from model.warming import step

STEPS = (([1], 256), ([1] * 8, 256), ([1] * 32, 256), ([1] * 64, 256), ([512], 0))
"""Rows of each sequence in a step, and the tokens before them."""


def load(model: str, quantize: str, kv_dtype: str) -> dict[str, ModelRunner]:
    """A runner for each value of --tune."""
    runners = {}
    for tune in TUNINGS:
        with tempfile.TemporaryDirectory() as cache:
            options = {
                "model": model,
                "device": "cpu",
                "quantize": quantize,
                "tune": tune,
                "cache": cache,
                "kv_dtype": kv_dtype,
            }
            runners[tune] = create(lambda stage, done: None, **options)
    return runners


def spread(batch: StepBatch) -> tuple[StepBatch, int]:
    """The step with pages of its own for each sequence, and their number. Keys come from memory, as in a server."""
    slices, end = [], 0
    for item in batch.slices:
        begin, end = end, end + len(item.tables[0].pages)
        slices.append(item._replace(tables=(PageTable(0, range(begin, end)),)))
    return StepBatch(tuple(slices)), end


@torch.inference_mode()
def times(
    runners: Mapping[str, ModelRunner], lengths: list[int], before: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of steps of each runner, in turns."""
    batch, n_pages = spread(step(next(iter(runners.values())).info, lengths, before=before))
    for layer in (layer for runner in runners.values() for layer in runner._pools.layers):
        for half in (layer.k, layer.v):  # memory that was never written would be read from one page of the system
            half[:n_pages].fill_(1)
    found: dict[str, list[float]] = {name: [] for name in runners}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, runner in runners.items():
            begin = time.perf_counter()
            runner.launch(batch)()
            found[name].append((time.perf_counter() - begin) * 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--quantize", default="int8")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger(tuner.__name__).setLevel(logging.DEBUG)
    runners = load(str(resolve(given.model)), given.quantize, given.kv_dtype)
    for lengths, before in STEPS:
        print(f"{len(lengths):3} x {lengths[0]:3}", end="")
        for name, found in times(runners, lengths, before, given.seconds).items():
            print(f"   {name} {min(found):7.2f} {median(found):7.2f} ms", end="")
        print()


if __name__ == "__main__":
    main()
