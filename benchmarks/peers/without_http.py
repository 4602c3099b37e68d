"""Noria's engine under the closed loops of the servers, without HTTP, with int8 weights.

Arguments: MODEL, the names of the loads as a JSON list, the seconds of each. The output is JSON: case -> tokens/s.
"""

import json
import random
import sys
import time
from itertools import count

from benchmarks import engine
from benchmarks.peers.loads import LOADS, Load
from model.step.runner import ModelRunner
from service.engine.messages import Submit


def tokens_per_second(runner: ModelRunner, load: Load, seconds: float) -> float:
    """The speed of a closed loop that submits requests to the scheduler for some seconds."""
    scheduler, numbers = engine.scheduler_for(runner), count()
    n_prompt, n_output = int(load.input_tokens), int(load.output_tokens)

    def submit() -> None:
        prompt = random.choices(range(100, runner.info.vocab_size - 100), k=n_prompt)
        scheduler.submit(Submit(next(numbers), prompt, engine.greedy(n_output)))

    began = time.perf_counter()
    for _ in range(load.concurrency or 0):
        submit()
    for step in engine.steps(runner, scheduler):
        for update in step.updates:
            if update.finish and time.perf_counter() - began < seconds:
                submit()
    n_tokens = n_output if load.counted == "output_tokens" else n_prompt
    return next(numbers) * n_tokens / (time.perf_counter() - began)


def cases(loads: dict[str, Load]) -> list[str]:
    """The loads that mean the same without HTTP: fixed lengths, no shared prefix."""
    fixed = {case: load for case, load in loads.items() if load.concurrency and load.input_tokens.isdecimal()}
    return [case for case, load in fixed.items() if not load.shared_prefix]


if __name__ == "__main__":
    ours, seconds = engine.load(sys.argv[1], quantize="int8"), float(sys.argv[3])
    tokens_per_second(ours, Load(concurrency=2, counted="output_tokens"), 0.1)  # warms up
    print(json.dumps({case: tokens_per_second(ours, LOADS[case], seconds) for case in json.loads(sys.argv[2])}))
