"""The report of a simulation, as JSON and as tables. Times are seconds in the report, milliseconds in the tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from service.commands.bench.summary import distribution
from service.commands.simulate.costs import Costs, to_json
from service.commands.simulate.fleet import Fleet
from service.commands.simulate.replica import Replica, Served, gap_seconds


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds to the first token, and the mean seconds between the tokens of an answer."""

    ttft: float
    inter_token: float

    def met(self, served: Served) -> bool:
        within = served.first_token <= self.ttft and served.inter_token <= self.inter_token
        return not served.refused and within


def summarize(fleet: Fleet, costs: Costs, targets: Targets) -> dict[str, Any]:
    """The report. Latencies are of the requests that were answered; a refused request meets no target."""
    answered = [item for item in fleet.served if not item.refused]
    met, seconds = sum(map(targets.met, fleet.served)), fleet.seconds
    return {
        "costs": costs.about,
        "replicas": len(fleet.replicas),
        "duration_seconds": seconds,
        "requests": {
            "total": len(fleet.served),
            "answered": len(answered),
            "refused": dict(Counter(item.refused for item in fleet.served if item.refused)),
        },
        "goodput": {
            "targets": asdict(targets),
            "share": met / len(fleet.served),
            "requests_per_second": met / seconds if seconds else 0.0,
            "tenants": _tenants(fleet.served, targets),
        },
        "throughput": _throughput(answered, seconds),
        "latency_seconds": {
            "time_to_first_token": distribution([(item.first_token, 1.0) for item in answered]),
            "inter_token": distribution(_gaps(fleet.replicas)),
            "mean_inter_token": distribution(
                [(item.inter_token, 1.0) for item in answered if item.request.n_output > 1]
            ),
            "queue": distribution([(item.queued, 1.0) for item in answered]),
            "request": distribution([(item.end - item.request.at, 1.0) for item in answered]),
        },
        "limits": to_json(costs)["engine"],
        "engine": _engine(fleet.replicas, seconds)
        | {"mean_waiting": sum(item.queued for item in answered) / seconds / len(fleet.replicas) if seconds else 0.0},
    }


def _tenants(served: Sequence[Served], targets: Targets) -> dict[str, float]:
    """The share of requests within the targets of each tenant, if there are several."""
    total, met = Counter[str](), Counter[str]()
    for item in served:
        total[item.request.tenant] += 1
        met[item.request.tenant] += targets.met(item)
    return {tenant: met[tenant] / total[tenant] for tenant in sorted(total)} if len(total) > 1 else {}


def _throughput(answered: Sequence[Served], seconds: float) -> dict[str, float]:
    return {
        "requests_per_second": len(answered) / seconds if seconds else 0.0,
        "prompt_tokens_per_second": sum(item.request.n_prompt for item in answered) / seconds if seconds else 0.0,
        "output_tokens_per_second": sum(item.request.n_output for item in answered) / seconds if seconds else 0.0,
    }


def _gaps(replicas: Sequence[Replica]) -> list[tuple[float, float]]:
    counted = sum((replica.gaps for replica in replicas), Counter[int]())
    return [(gap_seconds(number), float(count)) for number, count in counted.items()]


def _engine(replicas: Sequence[Replica], seconds: float) -> dict[str, float]:
    stats = [replica.scheduler.stats() for replica in replicas]
    steps = sum(replica.steps for replica in replicas)
    queried = sum(item.queried_tokens for item in stats)
    return {
        "preemptions": sum(item.preemptions for item in stats),
        "cache_hit_share": sum(item.hit_tokens for item in stats) / queried if queried else 0.0,
        "most_waiting": max(replica.most_waiting for replica in replicas),
        "busy_share": sum(replica.busy for replica in replicas) / seconds / len(replicas) if seconds else 0.0,
        "least_busy_share": min(replica.busy for replica in replicas) / seconds if seconds else 0.0,
        "steps": steps,
        "tokens_a_step": sum(replica.tokens for replica in replicas) / steps if steps else 0.0,
    }


def tables(report: dict[str, Any]) -> list[Table]:
    """The report as tables for the terminal."""
    return [_figures(report), _latencies(report["latency_seconds"])]


def _figures(report: dict[str, Any]) -> Table:
    goodput, requests, engine = report["goodput"], report["requests"], report["engine"]
    table = Table("simulated", escape(str(report["costs"].get("title", "no title"))))
    table.columns[1].justify = "right"
    targets = goodput["targets"]
    limits = report["limits"]
    table.add_row("replicas", str(report["replicas"]))
    table.add_row("pages of each, and their tokens", f"{_pages(limits)} of {limits['page_size']}")
    table.add_row("longest sequence", f"{limits['max_model_len']:,}")
    table.add_row("requests answered", f"{requests['answered']:,} of {requests['total']:,}")
    for reason, number in requests["refused"].items():
        table.add_row(f"  refused for {reason}", f"{number:,}")
    aims = f"first token {targets['ttft']:g} s, then {targets['inter_token']:g} s a token"
    table.add_row(f"within targets ({aims})", f"{goodput['share']:.1%}")
    for tenant, share in goodput["tenants"].items():
        table.add_row(f"  of {escape(tenant) or 'no tenant'}", f"{share:.1%}")
    table.add_row("goodput, requests / s", f"{goodput['requests_per_second']:.2f}")
    for name, value in report["throughput"].items():
        table.add_row(name.removesuffix("_per_second").replace("_", " ") + " / s", f"{value:.1f}")
    table.add_row("waiting, mean and most", f"{engine['mean_waiting']:.1f}, {engine['most_waiting']}")
    table.add_row("preemptions", f"{engine['preemptions']:,}")
    table.add_row("prompt tokens from the cache", f"{engine['cache_hit_share']:.1%}")
    table.add_row("busy, mean and least", f"{engine['busy_share']:.0%}, {engine['least_busy_share']:.0%}")
    table.add_row("steps, tokens in each", f"{engine['steps']:,}, {engine['tokens_a_step']:.1f}")
    table.add_row("seconds", f"{report['duration_seconds']:.1f}")
    return table


def _pages(limits: dict[str, Any]) -> str:
    return ", ".join(f"{pool['pages']:,}" for pool in limits["pools"])


def _latencies(latencies: dict[str, dict[str, float] | None]) -> Table:
    table = Table("milliseconds")
    names = ("p50", "p90", "p99", "mean")
    for name in names:
        table.add_column(name, justify="right")
    for kind, figures in latencies.items():
        table.add_row(kind.replace("_", " "), *(f"{1000 * figures[name]:.1f}" if figures else "-" for name in names))
    return table
