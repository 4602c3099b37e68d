"""The loads that every server gets from `noria bench`, and what is reported of each.

Closed loops of 1 to 64 streams; prompts only; requests that share most of a prompt; and requests of mixed lengths at
random times (Poisson): at shares of the server's own capacity, and at rates that are equal for all servers. Capacity is
measured first, as the requests/s of a closed loop of the same lengths.
"""

from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from service.commands.bench.command import BenchOptions, execute

Measured = dict[str, float]
"""Case -> tokens/s, requests/s or milliseconds."""

MILLISECONDS = ": ms "
"""In the names of cases of which less is better."""
FIRST, BETWEEN = "time_to_first_token", "inter_token"
NAMES = {FIRST: "to first token", BETWEEN: "between tokens"}
OPEN_LOOP = 1.5
"""Seconds of a load with a rate for each second of a closed loop: it has fewer requests, and percentiles need many."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of `input_tokens` and `output_tokens`, as the flags of `noria bench` describe them.

    `concurrency` at any time, or `rate` requests/s, or `share` of the server's capacity. Of the throughput, `counted`
    is reported: "output_tokens", "prompt_tokens" or "requests"; of latencies, the percentiles in `latencies`.
    """

    input_tokens: str = "64"
    output_tokens: str = "64"
    shared_prefix: int = 0
    concurrency: int | None = None
    rate: float | None = None
    share: float | None = None
    counted: str | None = None
    latencies: tuple[tuple[str, str], ...] = ()


def _streams(concurrency: int) -> Load:
    latencies = ((FIRST, "p50"), (BETWEEN, "p50"), (BETWEEN, "p99"))
    return Load(concurrency=concurrency, counted="output_tokens", latencies=latencies)


def _mixed(**pace: Any) -> Load:
    latencies = () if "counted" in pace else tuple((kind, name) for kind in NAMES for name in ("p50", "p99"))
    return Load("uniform:32-480", "uniform:16-112", latencies=latencies, **pace)


CAPACITY = "HTTP mixed, requests/s"
LOADS = {
    **{f"HTTP {streams}": _streams(streams) for streams in (1, 8, 32, 64)},
    "HTTP prompts": Load("512", "1", concurrency=8, counted="prompt_tokens"),
    "HTTP shared prefix": Load("512", "16", 448, concurrency=8, counted="prompt_tokens", latencies=((FIRST, "p50"),)),
    CAPACITY: _mixed(concurrency=32, counted="requests"),
    **{f"HTTP mixed, {share:.0%} of capacity": _mixed(share=share) for share in (0.5, 0.8, 0.95)},
}
RATES = (2.0, 4.0)


def chosen(parts: str, rates: tuple[float, ...] = RATES) -> dict[str, Load]:
    """The loads whose name contains one of the comma-separated parts, and the capacity if a share of it is needed.

    There is a mixed load for each of `rates`, in requests/s.
    """
    known = LOADS | {f"HTTP mixed, {rate:g} requests/s": _mixed(rate=rate) for rate in rates}
    found = {case for case in known if any(part in case for part in parts.split(","))}
    if any(known[case].share for case in found):
        found.add(CAPACITY)
    return {case: load for case, load in known.items() if case in found}


def send(url: str, key: str, load: Load, seconds: float, seed: int) -> dict[str, Any]:
    """The report of `noria bench` for a load with a concurrency or a rate. Raises RuntimeError if a request failed."""
    options = BenchOptions(
        url=url,
        api_key=key,
        seconds=seconds * (OPEN_LOOP if load.rate else 1.0),
        warmup=2,
        seed=seed,
        concurrency=load.concurrency,
        rate=load.rate,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        shared_prefix=load.shared_prefix,
    )
    with redirect_stdout(StringIO()):
        report = execute(options)
    if report["errors"]:
        raise RuntimeError(f"{report['requests']['failed']} requests failed: {report['errors']}")
    return report


def measure(loads: dict[str, Load], report_of: Callable[[Load, int], dict[str, Any]]) -> Measured:
    """The figures of all loads; `report_of` sends a load with a concurrency or a rate, and a seed.

    A load has the same seed for every server, but no other load has it: a cache would have its prompts.
    """
    measured: Measured = {}
    for number, (case, load) in enumerate(loads.items(), 1):
        rate = load.share * measured[CAPACITY] if load.share else load.rate
        # `noria bench` warms up with the number after the seed.
        measured |= figures(case, load, report_of(replace(load, rate=rate, share=None), 2 * number))
    return measured


def figures(case: str, load: Load, report: dict[str, Any]) -> Measured:
    """What `load` wants of a report, in tokens/s or requests/s and milliseconds."""
    found = {case: report["throughput"][f"{load.counted}_per_second"]} if load.counted else {}
    for kind, percentile in load.latencies:
        name = f"{case}{MILLISECONDS}{NAMES[kind]}, {percentile}"
        found[name] = 1000 * report["latency_seconds"][kind][percentile]
    return found
