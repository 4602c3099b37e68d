"""Processor time of the recorder: `python -m benchmarks.record [--models 2]`. One JSON line.

`step_us` is what an engine adds to a step for its tape, of 1 and of 64 sequences. `sample_us` is what the service does
once a second with a full ring, the search for a cause and the reads of /proc among it. `ring_bytes` is the memory of a
full ring of samples, events, stacks and steps.
"""

import argparse
import json
import time
import tracemalloc
from typing import Any

from model.batch import PageTable, Slice, StepBatch
from model.sampling_params import SamplingParams
from service.engine.tape import BYTES, SharedTape, Tape
from service.observe.journal import MAX_CHARS, MAX_EVENTS, MAX_STACKS, STACK_BYTES
from service.observe.metrics import Metrics
from service.recording.recorder import SECONDS, Recorder
from service.settings import Settings

N_STEPS = 20_000
N_TAKEN = 50


def batch(n_sequences: int) -> StepBatch:
    """A step in which so many sequences decode."""
    params, table = SamplingParams(), (PageTable(0, (0,)),)
    tokens = [1] * 101
    return StepBatch(tuple(Slice(n, tokens, 100, 101, 100, table, params, 0) for n in range(n_sequences)))


def step_us(n_sequences: int, tape: Tape) -> float:
    """Microseconds of processor time that the loop spends on the tape for a step: its clock, its counts, its record."""
    step = batch(n_sequences)
    began = time.process_time()
    for _ in range(N_STEPS):
        first = time.monotonic()
        number = tape.begin(1, step.n_prompt, len(step.slices), time.monotonic() - first)
        tape.end(number, time.monotonic() - first, time.monotonic() - first, 0.0)
    return 1e6 * (time.process_time() - began) / N_STEPS


class Nothing:
    """What a recorder reads, for a server that is not there: `take` gets the facts here."""

    draining = False

    def __iter__(self) -> Any:
        return iter(())


def facts(n_models: int, number: int) -> dict[str, Any]:
    """The facts of a second as a server has them, with numbers that change."""
    model = {f"fact_{index}": number + index / 7 for index in range(30)} | {
        "state": "ready",
        "pools": [[None, 1, 2, 3]],
    }
    system = {f"system_{index}": number * 1e6 + index for index in range(30)}
    return {"refused": {}, "models": {f"model-{index}": model for index in range(n_models)}, **system}


def full(n_models: int, metrics: Metrics) -> tuple[Recorder, float]:
    """A recorder whose ring is full, and the microseconds of its latest samples."""
    nothing: Any = Nothing()
    recorder = Recorder(Settings(), nothing, nothing, metrics, int)
    for _ in range(MAX_EVENTS):
        metrics.journal.note("fault", "x" * MAX_CHARS, model="model-0")
    for number in range(MAX_STACKS):
        stacks = str(number) * STACK_BYTES
        metrics.journal.stacks.append({"time": time.time(), "model": "", "engine": stacks, "service": stacks[::-1]})
    for number in range(SECONDS):
        recorder.take(facts(n_models, number))
    began = time.process_time()
    for number in range(N_TAKEN):
        recorder.take(facts(n_models, number))
    return recorder, 1e6 * (time.process_time() - began) / N_TAKEN


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record", description=__doc__)
    parser.add_argument("--models", type=int, default=2, help="Models of the server.")
    options = parser.parse_args()
    shared = SharedTape()
    tape = Tape(shared.path)
    steps = {n: round(min(step_us(n, tape) for _ in range(5)), 2) for n in (1, 64)}
    _, sample = full(options.models, Metrics())
    metrics = Metrics()
    tracemalloc.start()
    recorder, _ = full(options.models, metrics)
    ring = tracemalloc.get_traced_memory()[0] + BYTES * options.models
    assert recorder.record()
    print(json.dumps({"step_us": steps, "sample_us": round(sample), "ring_bytes": ring, "models": options.models}))


if __name__ == "__main__":
    main()
