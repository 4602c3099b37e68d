"""The engine's statistics as metrics. Its counters begin with each engine; these go on across restarts."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from service.engine.messages import Beat, Stats

COUNTERS = {
    "preemptions": ("preemptions", "Sequences preempted, to be recomputed later."),
    "queried_tokens": ("prefix_cache_queried_tokens", "Prompt tokens looked up in the prefix cache."),
    "hit_tokens": ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache."),
    "draft_tokens": ("draft_tokens", "Draft tokens from prompt lookup."),
    "accepted_draft_tokens": ("accepted_draft_tokens", "Draft tokens that the model accepted."),
}
"""Field of `Stats` -> metric."""
TOTALS = (*COUNTERS, "grammar_restarts")
"""Fields of `Stats` that count from the start of the engine."""


class EngineTotals:
    """The engine's counters across restarts: the sums of past engines, plus those of the present one."""

    def __init__(self) -> None:
        self._past: Tally[str] = Tally()
        self._current = Stats()
        self._past_processor = 0.0
        self._beat = Beat()

    def observe(self, stats: Stats) -> None:
        self._current = stats

    def observe_beat(self, beat: Beat) -> None:
        self._beat = beat

    def restart(self) -> None:
        self._past_processor, self._beat = self.processor, Beat()
        self._past.update({field: getattr(self._current, field) for field in TOTALS})
        self._current = Stats()

    @property
    def processor(self) -> float:
        """Seconds of processor time."""
        return self._past_processor + self._beat.processor

    @property
    def resident(self) -> int | None:
        """Bytes in RAM of the present engine; None without one, and where the system cannot tell."""
        return self._beat.resident

    def __getitem__(self, field: str) -> int:
        return self._past[field] + getattr(self._current, field)


class EngineCollector(Collector):
    """The engine's statistics. They are read when Prometheus asks, and cost a step nothing."""

    def __init__(self, stats: Callable[[], Stats], totals: EngineTotals) -> None:
        self._stats = stats
        self._totals = totals

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        stats = self._stats()
        yield GaugeMetricFamily("noria_requests_running", "Sequences being computed.", stats.running)
        yield GaugeMetricFamily("noria_requests_waiting", "Sequences waiting to be computed.", stats.waiting)
        pages = GaugeMetricFamily("noria_kv_pages", "Pages of the KV cache.", labels=["window", "state"])
        usage = [0.0]
        for pool in stats.pools:
            window = "full" if pool.window is None else str(pool.window)
            for state in ("held", "cached", "free"):
                pages.add_metric([window, state], getattr(pool, state))
            usage.append(pool.held / max(1, pool.held + pool.cached + pool.free))
        yield pages
        yield GaugeMetricFamily("noria_kv_usage_ratio", "Share of held pages in the fullest pool.", max(usage))
        if self._totals.resident is not None:
            yield GaugeMetricFamily(
                "noria_engine_resident_memory_bytes",
                "Memory of the engine process in RAM, mapped weights included.",
                self._totals.resident,
            )
        yield CounterMetricFamily(
            "noria_engine_cpu_seconds",
            "Processor time of the engine processes, of all threads.",
            self._totals.processor,
        )
        for field, (name, text) in COUNTERS.items():
            yield CounterMetricFamily(f"noria_{name}", text, self._totals[field])
