"""Predictions of `noria simulate` beside a real server: `python -m benchmarks.costs.compare`.

It measures the costs, asks the simulator what the machine can serve, and sends three loads to a server: light, near
that, and above. The simulator then gets the same requests at the same times. With --costs it measures no costs.
With --pretend the server does not compute: its steps last as long as the costs say (`pretend.py`), and only what HTTP
adds is measured.
"""

import json
import os
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.costs import pretend, service
from benchmarks.costs.__main__ import flags, measure, parser, with_service
from service.commands.bench.prompts import random_prompts
from service.commands.bench.summary import inter_token
from service.commands.bench.workload import Result
from service.commands.simulate.costs import Costs, read
from service.commands.simulate.fleet import Fleet, round_robin, simulate
from service.commands.simulate.requests import Request
from service.commands.simulate.summary import Targets, summarize

LOADS = {"light": 0.3, "near capacity": 0.85, "above capacity": 1.4}
"""The rates, as parts of what the machine can serve."""
PROMPTS, OUTPUTS = (20, 300), (16, 96)
TARGETS = Targets(0.5, 0.1)
MAX_QUEUE = 2**20
Figures = dict[str, float]


def mean_of(lengths: tuple[int, int]) -> int:
    return sum(lengths) // 2


def capacity(costs: Costs) -> float:
    """Requests per second if a great many come at once."""
    count = 4 * costs.engine.max_sequences
    fleet = run(costs, [Request(0.0, mean_of(PROMPTS), mean_of(OUTPUTS)) for _ in range(count)])
    return count / fleet.seconds


def run(costs: Costs, requests: Sequence[Request]) -> Fleet:
    return simulate(requests, costs, 1, round_robin, MAX_QUEUE)


def predicted(costs: Costs, results: Sequence[Result]) -> Figures:
    """What the simulator says about the requests that were sent."""
    ordered = sorted(results, key=lambda result: result.start)
    fleet = run(costs, [Request(item.start, item.prompt_tokens, item.completion_tokens) for item in ordered])
    report = summarize(fleet, costs, TARGETS)
    latency = report["latency_seconds"]
    return {
        "first token, mean, ms": 1000 * latency["time_to_first_token"]["mean"],
        "first token, p90, ms": 1000 * latency["time_to_first_token"]["p90"],
        "a token, mean, ms": 1000 * latency["mean_inter_token"]["mean"],
        "request, mean, ms": 1000 * latency["request"]["mean"],
        "request, p90, ms": 1000 * latency["request"]["p90"],
        "output tokens / s": report["throughput"]["output_tokens_per_second"],
        "within targets, %": 100 * report["goodput"]["share"],
    }


def measured(results: Sequence[Result]) -> Figures:
    """The same figures of the server's answers."""
    firsts = sorted(result.arrivals[0] for result in results)
    gaps = [sum(gap * n for gap, n in inter_token(result)) / (result.completion_tokens - 1) for result in results]
    seconds = sorted(result.seconds for result in results)
    ends = max(result.start + result.seconds for result in results)
    met = [
        first.arrivals[0] <= TARGETS.ttft and gap <= TARGETS.inter_token
        for first, gap in zip(results, gaps, strict=True)
    ]
    return {
        "first token, mean, ms": 1000 * statistics.mean(firsts),
        "first token, p90, ms": 1000 * p90(firsts),
        "a token, mean, ms": 1000 * statistics.mean(gaps),
        "request, mean, ms": 1000 * statistics.mean(seconds),
        "request, p90, ms": 1000 * p90(seconds),
        "output tokens / s": sum(result.completion_tokens for result in results) / ends,
        "within targets, %": 100 * statistics.mean(met),
    }


def p90(ordered: Sequence[float]) -> float:
    return ordered[-(-9 * len(ordered) // 10) - 1]


def compare(costs: Costs, server: service.Server, count: int, note: Callable[[str], None]) -> dict[str, Any]:
    """For each load its rate, and the figures as predicted and as measured."""
    most, found = capacity(costs), dict[str, Any]()
    note(f"the simulator expects {most:.2f} requests/s at most")
    server.load([*random_prompts([PROMPTS[1]] * 8, 0, 99)], [8] * 8, seed=0, concurrency=4)  # warms up
    for seed, (name, part) in enumerate(LOADS.items()):
        rng = random.Random(seed)
        prompts = [*random_prompts([rng.randint(*PROMPTS) for _ in range(count)], 0, seed)]
        outputs = [rng.randint(*OUTPUTS) for _ in range(count)]
        note(f"{name}: {part * most:.2f} requests/s")
        results = server.load(prompts, outputs, seed=seed, rate=part * most)
        found[name] = {"rate": part * most, "predicted": predicted(costs, results), "measured": measured(results)}
    return found


def table(found: dict[str, Any]) -> Table:
    made = Table("load", "figure", "predicted", "measured", "error")
    for name, load in found.items():
        for figure, value in load["predicted"].items():
            real = load["measured"][figure]
            error = f"{value - real:+.0f} points" if figure.endswith("%") else f"{value / real - 1:+.0%}"
            made.add_row(f"{name}, {load['rate']:.1f}/s", figure, f"{value:.1f}", f"{real:.1f}", error)
    return made


def main() -> None:
    made = parser()
    made.add_argument("--costs", type=Path, help="file of costs to use instead of measuring them")
    made.add_argument("--pretend", action="store_true", help="steps that sleep; needs --costs")
    made.add_argument("--requests", type=int, default=150, help="requests of each load (150)")
    made.add_argument("--out", type=Path, help="file for the figures")
    args = made.parse_args()
    if args.pretend and not args.costs:
        made.error("--pretend needs --costs")
    console = Console(width=None if Console().is_terminal else 120)
    module = "service"
    costs = read(args.costs) if args.costs else measure(args, console)
    if args.pretend:
        os.environ[pretend.FILE] = str(args.costs.resolve())
        module = pretend.__name__
        costs = with_service(costs, args, console, module)
    with service.server(args.model, (*flags(args), "--max-queue", str(MAX_QUEUE)), module) as server:
        found = compare(costs, server, args.requests, console.print)
    console.print(table(found))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
