"""The engine's statistics as metrics. Its counters begin with each engine; these go on across restarts."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
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


class EngineMetrics(Collector):
    """The engine's statistics, read when Prometheus asks: they cost a step nothing.

    Counters are the sums of past engines, plus those of the present one.
    """

    def __init__(self, registry: CollectorRegistry, stats: Callable[[], Stats]) -> None:
        self._stats = stats
        self._past: Tally[str] = Tally()
        self._current = Stats()
        self._past_processor = 0.0
        self._beat = Beat()
        registry.register(self)

    def observe(self, stats: Stats) -> None:
        self._current = stats

    def observe_beat(self, beat: Beat) -> None:
        """Four times a second, of the engine that loads or serves."""
        self._beat = beat

    def restart(self) -> None:
        self._past_processor, self._beat = self._past_processor + self._beat.processor, Beat()
        self._past.update({field: getattr(self._current, field) for field in TOTALS})
        self._current = Stats()

    def total(self, field: str) -> int:
        """A counter of all engines."""
        return self._past[field] + getattr(self._current, field)

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
        if self._beat.resident is not None:
            yield GaugeMetricFamily(
                "noria_engine_resident_memory_bytes",
                "Memory of the engine process in RAM, mapped weights included.",
                self._beat.resident,
            )
        yield CounterMetricFamily(
            "noria_engine_cpu_seconds",
            "Processor time of the engine processes, of all threads.",
            self._past_processor + self._beat.processor,
        )
        for field, (name, text) in COUNTERS.items():
            yield CounterMetricFamily(f"noria_{name}", text, self.total(field))
