"""What rules for chunks of prompts do to latency and throughput, by arithmetic: `python -m benchmarks.chunks`.

The real scheduler runs under a virtual clock. A step takes as long as its cost says, with 5 % of noise, and the
scheduler learns the cost as it does in the server. Requests arrive at random times, at shares of the capacity, which is
that without targets when all requests come at once. The lengths are those of

    noria bench --rate R --input-tokens uniform:32-480 --output-tokens uniform:16-112

A rule is two targets in milliseconds, or a fixed number of tokens in each step:

    python -m benchmarks.chunks --costs int8,7b --rules 0/0,200/50,fixed:256
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import mean
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from model.batch import PoolSpec, RunnerInfo, SliceOutput, StepBatch, StepOutput
from model.options import STEP_LIMITS
from model.sampling_params import SamplingParams
from service.engine.messages import Submit
from service.engine.scheduling.budget import PromptBudget
from service.engine.scheduling.scheduler import Scheduler

NOISE = 0.05
ANSWER = SliceOutput((7,))
LONGEST_PROMPT = 2**15


class Cost(NamedTuple):
    """Seconds of a step, of each row that decodes, each prompt token, and each pair of a prompt token and a key."""

    step: float
    row: float
    token: float
    pair: float = 0.0

    def seconds(self, rows: int, tokens: int, pairs: float = 0.0) -> float:
        return self.step + self.row * rows + self.token * tokens + self.pair * pairs


COSTS = {
    "int8": Cost(4.2e-3, 0.35e-3, 0.20e-3, 1e-7),
    "bf16": Cost(7.5e-3, 0.43e-3, 0.36e-3, 1e-7),
    "amx-int8": Cost(3.9e-3, 0.63e-3, 0.205e-3, 4.1e-7),
    "amx-bf16": Cost(10e-3, 0.5e-3, 0.24e-3, 4.1e-7),
    "fast-int8": Cost(3e-3, 0.3e-3, 0.06e-3, 0.7e-7),
    "fast-bf16": Cost(8e-3, 0.3e-3, 0.09e-3, 0.7e-7),
    "7b": Cost(78e-3, 8.5e-3, 8.7e-3, 1e-6),
}
"""On two cores. The embedded model as it is served over HTTP, by `benchmarks/results` (Zen 5); its engine alone on an
Intel Xeon with AMX, and if prompts were three times as fast there. A 7B in 4 bits, by `benchmarks/results` (Zen 5)."""


class Request(NamedTuple):
    arrival: float  # seconds
    n_prompt: int
    n_output: int


@dataclass
class Times:
    """Seconds of simulated requests; `steps` has the rows that decode, and seconds."""

    firsts: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)
    end: float = 0.0


def simulate(
    requests: list[Request],
    seconds: Callable[[float, int, int, float], float],
    budget: PromptBudget,
    *,
    streams: int = 0,
    max_step_tokens: int = STEP_LIMITS["cpu"][1],
) -> Times:
    """Serve requests at their arrivals, or the next one whenever fewer than `streams` are served.

    `seconds` gets the time, the rows that decode, the prompt tokens, and the pairs of a step, and returns its length.
    """
    random, times, now, waiting = Random(0), Times(), 0.0, requests[::-1]
    pools = (PoolSpec(None, 2**14),)
    info = RunnerInfo(32, pools, LONGEST_PROMPT, 64, 8, STEP_LIMITS["cpu"][0], max_step_tokens, {})
    engine = Scheduler(
        info, max_sequences=info.max_sequences, max_step_tokens=max_step_tokens, clock=lambda: now, prompts=budget
    )
    sent, latest = dict[int, float](), dict[int, float]()
    served = 0  # that are not finished
    while waiting or engine.has_work:
        if waiting and not streams and not engine.has_work:
            now = max(now, waiting[-1].arrival)
        while waiting and (served < streams if streams else waiting[-1].arrival <= now):
            request, number = waiting.pop(), len(sent)
            params = SamplingParams(temperature=0.0, max_tokens=request.n_output)
            engine.submit(Submit(number, [number + 1] * request.n_prompt, params))
            sent[number] = now if streams else request.arrival
            served += 1
        batch = engine.plan()
        counts = batch.n_tokens - batch.n_prompt, batch.n_prompt, batch.n_pairs
        took = seconds(now, *counts) * max(0.5, random.gauss(1, NOISE))
        now += took
        times.steps.append((counts[0], took))
        budget.cost.note(*counts, took)
        budget.pace.note(batch.n_tokens, batch.n_pairs, took)
        for update in engine.commit(_sampled(batch)):
            if update.tokens and update.id in latest:
                times.between.append(now - latest[update.id])
            elif update.tokens:
                times.firsts.append(now - sent[update.id])
            latest[update.id] = now
            if update.finish:
                times.requests.append(now - sent[update.id])
                served -= 1
    times.end = now
    return times


def arriving(n: int, rate: float, seed: int) -> list[Request]:
    """Requests at random times (Poisson), or all at once if the rate is 0."""
    random, arrival, requests = Random(seed), 0.0, list[Request]()
    for _ in range(n):
        arrival += random.expovariate(rate) if rate else 0.0
        requests.append(Request(arrival, random.randint(32, 480), random.randint(16, 112)))
    return requests


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _sampled(batch: StepBatch) -> StepOutput:
    return StepOutput(tuple(ANSWER if item.samples else SliceOutput() for item in batch.slices))


def _serve(rule: str, cost: Cost, requests: list[Request], streams: int = 0) -> Times:
    fixed = rule.startswith("fixed:")
    first, between = (0.0, 0.0) if fixed else (float(target) / 1000 for target in rule.split("/"))
    tokens = int(rule[6:]) if fixed else STEP_LIMITS["cpu"][1]
    budget = PromptBudget(first, between)
    return simulate(
        requests, lambda now, *counts: cost.seconds(*counts), budget, streams=streams, max_step_tokens=tokens
    )


def _row(rule: str, cost: Cost, loads: list[float], capacity: float, n: int, seeds: int) -> list[str]:
    """Its capacity beside that without targets, then the latencies at each load, in ms."""
    cells = [rule, f"{n / _serve(rule, cost, arriving(n, 0, 0)).end / capacity:.3f}"]
    cells.append(f"{n / _serve(rule, cost, arriving(n, 0, 0), streams=32).end:.2f}")
    for load in loads:
        found = [_serve(rule, cost, arriving(n, load * capacity, 1 + seed)) for seed in range(seeds)]
        firsts, between = [[item.firsts for item in found], [item.between for item in found]]
        figures = [
            mean(percentile(item, share) for item in kind) for kind in (firsts, between) for share in (0.5, 0.99)
        ]
        figures.append(mean(mean(item.requests) for item in found))
        cells.append("{:.0f} {:.0f}  {:.1f} {:.0f}  {:.0f}".format(*(1000 * figure for figure in figures)))
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", default="int8,bf16,7b", help=f"of {', '.join(COSTS)}")
    parser.add_argument("--rules", default="0/0,200/50,fixed:128,fixed:256")
    parser.add_argument("--loads", default="0.3,0.5,0.8,0.95", help="shares of the capacity")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    loads = [float(load) for load in options.loads.split(",")]
    for name in options.costs.split(","):
        cost = COSTS[name]
        capacity = options.requests / _serve("0/0", cost, arriving(options.requests, 0, 0)).end
        title = f"{name}: {capacity:.2f} requests/s; first token p50 p99, between tokens p50 p99, request mean, ms"
        heads = (f"at {load:.0%}" for load in loads)
        table = Table("rule", "capacity", "32 streams, requests/s", *heads, title=title)
        for rule in options.rules.split(","):
            table.add_row(*_row(rule, cost, loads, capacity, options.requests, options.seeds))
        Console(width=180).print(table)


if __name__ == "__main__":
    main()
