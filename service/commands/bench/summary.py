"""The results of a load test as a report and as tables. Times are seconds in the report, milliseconds in the tables."""

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from service.commands.bench.workload import Result

PERCENTILES = (50, 90, 99)

Sample = tuple[float, float]
"""A value in seconds and its weight."""


def summarize(results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Report a load of `seconds`: counts, tokens, throughput, latencies. Only counts include failures."""
    good = [result for result in results if result.error is None]
    tokens = {
        name: sum(getattr(result, f"{name}_tokens") for result in good) for name in ("prompt", "cached", "completion")
    }
    return {
        "duration_seconds": seconds,
        "requests": {"total": len(results), "completed": len(good), "failed": len(results) - len(good)},
        "errors": _errors(results),
        "tokens": tokens
        | {"pieces": sum(len(result.arrivals) for result in good), "without_usage": sum(not r.counted for r in good)},
        "throughput": {
            "output_tokens_per_second": tokens["completion"] / seconds,
            "prompt_tokens_per_second": tokens["prompt"] / seconds,
            "requests_per_second": len(good) / seconds,
        },
        "latency_seconds": {
            "time_to_first_token": distribution([(r.arrivals[0], 1.0) for r in good if r.arrivals]),
            "inter_token": distribution([sample for result in good for sample in inter_token(result)]),
            "request": distribution([(result.seconds, 1.0) for result in good]),
        },
    }


def _errors(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    errors: dict[str, dict[str, Any]] = {}
    for result in results:
        if result.error:
            errors.setdefault(result.error, {"count": 0, "example": result.detail})["count"] += 1
    return errors


def inter_token(result: Result) -> list[Sample]:
    """Return the gaps between pieces: for each one the time per token and the number of its tokens.

    A piece may have several tokens, or a part of one. With n tokens in k pieces every gap counts for
    (n - 1) / (k - 1) tokens. The mean is then (last - first) / (n - 1), however the server cuts its text.
    """
    gaps = [later - sooner for sooner, later in zip(result.arrivals, result.arrivals[1:], strict=False)]
    if not gaps or result.completion_tokens < 2:
        return []
    tokens_a_gap = (result.completion_tokens - 1) / len(gaps)
    return [(gap / tokens_a_gap, tokens_a_gap) for gap in gaps]


def distribution(samples: Sequence[Sample]) -> dict[str, float] | None:
    """Return mean and percentiles of weighted samples; None without samples.

    A percentile is the smallest value with at least that share of the weight at or below it.
    """
    if not samples:
        return None
    total = sum(weight for _, weight in samples)
    figures = {"mean": sum(value * weight for value, weight in samples) / total}
    ordered, seen = iter(sorted(samples)), 0.0
    value = 0.0
    for percentile in PERCENTILES:
        while seen < total * percentile / 100 * (1 - 1e-9):  # the sum of many weights is not exact
            value, weight = next(ordered)
            seen += weight
        figures[f"p{percentile}"] = value
    return figures


def tables(report: dict[str, Any]) -> list[Table]:
    made = [_figures(report), _latencies(report["latency_seconds"])]
    if report["errors"]:
        made.append(_failures(report["errors"]))
    return made


def _figures(report: dict[str, Any]) -> Table:
    configuration, requests, tokens = report["configuration"], report["requests"], report["tokens"]
    pace = (
        f"{configuration['rate']:g} requests/s"
        if configuration["rate"]
        else f"{configuration['concurrency']} at a time"
    )
    table = Table("model", escape(configuration["model"]), title="Throughput")
    table.columns[1].justify = "right"
    table.add_row("load", f"{configuration['endpoint']}, {pace}")
    for name, value in report["throughput"].items():
        table.add_row(name.removesuffix("_per_second").replace("_", " ") + " / s", f"{value:.1f}")
    table.add_row("requests completed", f"{requests['completed']} of {requests['total']}")
    table.add_row("seconds", f"{report['duration_seconds']:.2f}")
    table.add_row("output tokens", f"{tokens['completion']} in {tokens['pieces']} pieces")
    table.add_row("prompt tokens", f"{tokens['prompt']}, {tokens['cached']} from the cache")
    if tokens["without_usage"]:
        table.add_row("answers without usage", f"{tokens['without_usage']}: pieces counted as tokens")
    table.add_row("seed", str(configuration["seed"]))
    return table


def _latencies(latencies: dict[str, dict[str, float] | None]) -> Table:
    table = Table("milliseconds", title="Latency")
    names = [*(f"p{percentile}" for percentile in PERCENTILES), "mean"]
    for name in names:
        table.add_column(name, justify="right")
    for kind, figures in latencies.items():
        values = [f"{figures[name] * 1000:.1f}" if figures else "-" for name in names]
        table.add_row(kind.replace("_", " "), *values)
    return table


def _failures(errors: dict[str, dict[str, Any]]) -> Table:
    table = Table("error", "requests", "first message", title="Failures")
    for kind, failure in errors.items():
        table.add_row(kind, str(failure["count"]), escape(failure["example"]))
    return table
