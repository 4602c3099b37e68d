"""Speed of the engine without HTTP, schemes interleaved: `python benchmarks/engine.py [MODEL] [--repeat N]`.

Each row is tokens/s: a prompt of 512 tokens computed alone, and decoding by 1, 8 and 32 streams from 64-token prompts.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from model.checkpoint.resolve import EMBEDDED, resolve
from model.runner import ModelRunner, create
from model.sampling_params import SamplingParams
from service.engine.messages import Submit
from service.engine.scheduler import Scheduler

SCHEMES = {"bf16": {"quantize": "none", "dtype": "bfloat16"}, "int8": {"quantize": "int8"}}
DECODED = 32
WORKLOADS = {
    "prefill 512": (1, 512, 1),
    "1 stream": (1, 64, DECODED),
    "8 streams": (8, 64, DECODED),
    "32": (32, 64, DECODED),
}


def measure(runner: ModelRunner, streams: int, length: int, n_out: int) -> float:
    """Tokens/s: of the prompt where one token is asked for, else of the steps in which all streams decode."""
    scheduler = Scheduler(runner.info, max_sequences=64, max_step_tokens=512)
    params = SamplingParams(temperature=0.0, max_tokens=n_out)
    for number in range(streams):
        prompt = [random.randrange(100, runner.info.vocab_size - 100) for _ in range(length)]
        scheduler.submit(Submit(number, prompt, params))
    seconds = []
    while scheduler.has_work:
        started = time.perf_counter()
        batch = scheduler.plan()
        scheduler.commit(runner.step(batch))
        if n_out == 1 or batch.n_tokens == streams:
            seconds.append(time.perf_counter() - started)
    return length / sum(seconds) if n_out == 1 else streams / statistics.median(seconds)


def measure_all(directory: Path, options: dict[str, str]) -> dict[str, float]:
    """Every workload once, after a round that warms up."""
    runner = create(lambda stage, done: None, model=str(directory), max_sequences=64, max_step_tokens=512, **options)
    for shape in WORKLOADS.values():
        measure(runner, *shape)
    return {workload: measure(runner, *shape) for workload, shape in WORKLOADS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--scheme", choices=SCHEMES, help="measure this one and print JSON")
    asked = parser.parse_args()
    if asked.scheme:
        print(json.dumps(measure_all(resolve(asked.model), SCHEMES[asked.scheme])))
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SCHEMES}
    for _ in range(asked.repeat):
        for name in SCHEMES:  # a process each: PyTorch's number of threads is the process's
            command = [sys.executable, __file__, asked.model, "--scheme", name]
            found[name].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    print(f"{'tokens/s':12}" + "".join(f"{name:>10}" for name in SCHEMES) + f"{'ratio':>10}")
    for workload in WORKLOADS:
        medians = [statistics.median(run[workload] for run in runs) for runs in found.values()]
        print(f"{workload:12}" + "".join(f"{value:10.0f}" for value in medians) + f"{medians[1] / medians[0]:10.2f}")


if __name__ == "__main__":
    main()
