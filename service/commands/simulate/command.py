"""`noria simulate`: how many replicas a load needs, and what its clients would see."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from model.errors import OptionError
from model.options import check_limits, option, same
from service.commands.flags import takes
from service.commands.lengths import HELP, lengths
from service.commands.simulate import costs as cost_file
from service.commands.simulate import traces
from service.commands.simulate.costs import Costs
from service.commands.simulate.engine import limited, planned
from service.commands.simulate.fleet import BALANCERS
from service.commands.simulate.fleet import simulate as run
from service.commands.simulate.requests import Request, at_random
from service.commands.simulate.summary import Targets, summarize, tables
from service.settings import Settings

REQUESTS = 1000
MOST_REPLICAS = 1024
OF_RATE = ("input", "output", "shared_prefix", "seed")
"""Options that describe the requests of --rate."""


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The options of `noria simulate`."""

    trace: Path | None = option(
        None, "File of requests: CSV of Azure's LLM traces, or JSON lines of Mooncake's.", unset="none", group="Load"
    )
    speed: float | None = option(None, "Factor by which the requests of --trace come faster.", unset="1", least=0.001)
    rate: float | None = option(
        None, "Average number of requests per second, at random times (Poisson).", unset="none", least=0.001
    )
    input: str | None = option(None, f"Tokens of the prompts for --rate: {HELP}.", unset="512")
    output: str | None = option(None, "Tokens of the answers for --rate, as --input.", unset="128")
    shared_prefix: int | None = option(
        None, "Tokens at the start that all prompts of --rate share.", unset="none", least=1
    )
    seed: int | None = option(None, "Seed of times and lengths for --rate.", unset="0", least=0)
    requests: int | None = option(None, "Number of requests.", unset=f"{REQUESTS} of --rate, all of --trace", least=1)
    costs: Path | None = option(
        None,
        "Cost of a replica's steps, a file of python -m benchmarks.costs.",
        unset="required",
        group="Server",
    )
    replicas: int | None = option(None, "Number of replicas.", unset="1, with --goal the least that suffice", least=1)
    goal: float | None = option(
        None,
        "Find the least number of replicas that serve this share of requests within the targets.",
        unset="none",
        above=0.0,
        most=1.0,
    )
    balancer: str = option("round-robin", "How requests are spread over replicas.", choices=tuple(BALANCERS))
    model: str | None = option(
        None, "Model whose memory plan gives the pages, as for noria plan. Needs --memory.", unset="those of --costs"
    )
    memory: str | None = option(None, "Memory of the device for --model, such as 80GiB.", unset="none")
    device: str | None = option(None, "Device for --model.", unset="cuda", choices=("cpu", "cuda"))
    pages: int | None = option(None, "Pages of each pool.", unset="those of --costs", least=1)
    max_sequences: int | None = option(None, "Number of sequences in a step.", unset="that of --costs", least=1)
    max_step_tokens: int | None = option(None, "Number of tokens in a step.", unset="that of --costs", least=1)
    target_inter_token_ms: float | None = option(
        None,
        "Milliseconds between two tokens at which chunks of prompts aim, as for noria serve.",
        unset="that of --costs",
        least=0,
    )
    max_queue: int = same(Settings, "max_queue")
    ttft: float = option(1.0, "Target for the time to the first token, in seconds.", least=0.001, group="Report")
    inter_token: float = option(0.1, "Target for the mean time between an answer's tokens, in seconds.", least=0.001)
    json: bool = option(False, "Print JSON.")


@takes(SimulateOptions, "NORIA_SIMULATE_")
def simulate(options: SimulateOptions) -> None:
    """Predict how replicas serve a load: latencies, goodput, queue, preemptions and cache hits.

    Noria's scheduler runs under a virtual clock. The cost of each step comes from measurements of a machine. With
    --goal the exit code is 1 if no number of replicas reaches the goal.
    """
    report = execute(options)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        console = Console(highlight=False)
        for table in tables(report):
            console.print(table)
    if options.goal is not None and report["goodput"]["share"] < options.goal:
        raise typer.Exit(1)


def execute(options: SimulateOptions) -> dict[str, Any]:
    """The report of a simulation. Raises OptionError for options that exclude each other, and for unusable files."""
    check_limits(options)
    requests, costs = _requests(options), _costs(options)
    targets = Targets(options.ttft, options.inter_token)

    def tried(n_replicas: int) -> dict[str, Any]:
        fleet = run(requests, costs, n_replicas, BALANCERS[options.balancer], options.max_queue)
        return summarize(fleet, costs, targets)

    if options.goal is None:
        return tried(options.replicas or 1)
    if options.replicas is not None:
        raise OptionError(f"--goal finds the number of replicas; leave out --replicas {options.replicas}")
    return least_replicas(tried, options.goal, min(MOST_REPLICAS, len(requests)))


def least_replicas(tried: Callable[[int], dict[str, Any]], goal: float, most: int) -> dict[str, Any]:
    """The report of the least number of replicas that reach the goal; of `most`, if none does.

    More replicas are taken to serve no worse.
    """
    fails, n, report = 0, 1, tried(1)
    while report["goodput"]["share"] < goal and n < most:
        fails, n = n, min(2 * n, most)
        report = tried(n)
    while n - fails > 1 and report["goodput"]["share"] >= goal:
        middle = (fails + n) // 2
        found = tried(middle)
        if found["goodput"]["share"] >= goal:
            n, report = middle, found
        else:
            fails = middle
    return report


def _requests(options: SimulateOptions) -> list[Request]:
    if (options.trace is None) == (options.rate is None):
        raise OptionError("give one of --trace and --rate")
    if options.trace is not None:
        _refuse(options, OF_RATE, "--trace")
        return traces.read(options.trace, options.speed or 1.0, options.requests)
    _refuse(options, ("speed",), "--rate")
    draws = (lengths(options.input or "512", "--input").draw, lengths(options.output or "128", "--output").draw)
    count, shared, seed = options.requests or REQUESTS, options.shared_prefix or 0, options.seed or 0
    return list(at_random(options.rate or 1.0, count, *draws, shared=shared, seed=seed))


def _refuse(options: SimulateOptions, names: Iterable[str], other: str) -> None:
    """Raise OptionError if one of these options is set."""
    for name in names:
        if getattr(options, name) is not None:
            raise OptionError(f"--{name.replace('_', '-')} {getattr(options, name)} has no meaning with {other}")


def _costs(options: SimulateOptions) -> Costs:
    if options.costs is None:
        raise OptionError("--costs is missing: a file of python -m benchmarks.costs, such as those in deploy/costs")
    costs = cost_file.read(options.costs)
    if options.model is None:
        _refuse(options, ("memory", "device"), "the pages of --costs; it belongs to --model")
        info = costs.engine
    else:
        _refuse(options, ("pages",), "--model, whose plan gives the pages")
        info = planned(options.model, options.device or "cuda", options.memory, costs.engine)
    wanted = (options.pages, options.max_sequences, options.max_step_tokens, options.target_inter_token_ms)
    return replace(costs, engine=limited(info, *wanted))
