"""Prometheus metrics, `noria_*`, in a registry of their own: what requests, connections and the engine count.

Names are stable: dashboards and alerts use them.
"""

import asyncio
import platform
import time
from bisect import bisect_left
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from itertools import accumulate, product

from prometheus_client import CollectorRegistry, Counter, Gauge, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from model.batch import RunnerInfo
from service import version
from service.engine.messages import FINISHES, Beat, Report, Stats
from service.errors.statuses import STATUSES
from service.observe.adapter_metrics import AdapterMetrics
from service.observe.field_metrics import FieldMetrics
from service.observe.vllm_names import VllmNames

LATENCY_BUCKETS = tuple(
    milliseconds / 1000
    for milliseconds in (
        *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750),
        *(1_000, 1_500, 2_500, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000),
    )
)
STEP_BUCKETS = tuple(2.0**n for n in range(15))
OUTCOMES = (*FINISHES, "error", "refused")
REFUSALS = ("unread", *sorted({status.refused for status in STATUSES.values() if status.refused}))
DESCRIBED = ("family", "parameters", "quantize", "dtype", "kv_dtype", "attention", "device", "kernels")
"""Labels of the model's info that `RunnerInfo.description` has."""
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
OTHER = "other"
"""The label of any other method, and of a path without a route: clients choose them, so they must not make series."""
AWAITED = (200, 500, 503)
"""Statuses of which each route that takes a body has a series from the start. `rate()` does not count what a series
begins with: without a sample of 0 an outage would be no part of the availability."""
LAG_INTERVAL = 0.25
LAG_SAMPLES = 60
COUNTERS = {
    "preemptions": ("preemptions", "Sequences preempted, to be recomputed later."),
    "queried_tokens": ("prefix_cache_queried_tokens", "Prompt tokens looked up in the prefix cache."),
    "hit_tokens": ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache."),
    "disk_tokens": ("prefix_cache_disk_tokens", "Prompt tokens of the hits that were read from --prefix-store."),
    "pages_written": ("prefix_store_written_pages", "Pages that were written to --prefix-store."),
    "pages_dropped": ("prefix_store_dropped_pages", "Pages that were not written: the disk was too slow, or failed."),
    "draft_tokens": ("draft_tokens", "Draft tokens from prompt lookup."),
    "accepted_draft_tokens": ("accepted_draft_tokens", "Draft tokens that the model accepted."),
}
"""Field of `Stats` -> metric."""
TOTALS = (*COUNTERS, "grammar_restarts")
"""Fields of `Stats` that count from the start of the engine."""


class Histogram(Collector):
    """A histogram that needs no lock, because only the event loop writes it: a token costs less than a microsecond.

    `bounds` are the upper bounds of its buckets, in ascending order.
    """

    def __init__(self, registry: CollectorRegistry, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self.latest: float | None = None
        registry.register(self)

    def observe(self, value: float, times: int = 1) -> None:
        self.latest = value
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[HistogramMetricFamily]:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets, self._sum)


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


def _facts(name: str, info: RunnerInfo) -> dict[str, str]:
    """The labels of `noria_model_info`."""
    limits = {"context": info.max_model_len, "sequences": info.max_sequences, "step_tokens": info.max_step_tokens}
    facts = {label: str(info.description.get(label, "")) for label in DESCRIBED}
    return {"model": name, **facts, **{label: str(limit) for label, limit in limits.items()}}


class Metrics:
    """All metrics of the server. `stats` returns the engine's latest statistics, whose counters begin with the engine.

    Outcomes of requests: the finish reasons (the first of `FINISHES` that any choice
    has). "abort" also: the client disconnected. "error": the server failed after admission. "refused": 4xx, or 503
    before admission.
    `adapters` are those of LoRA adapters, `fields` those of fields in requests.
    """

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._engine = EngineMetrics(registry, stats)
        self.observe_beat = self._engine.observe_beat
        self.adapters = AdapterMetrics(registry, stats, OUTCOMES)
        self.fields = FieldMetrics(registry)
        self._generated = 0
        self._restarted: Tally[str] = Tally()
        self._served: tuple[str, RunnerInfo] | None = None
        self._build = {"version": version(), "python": platform.python_version(), "torch": metadata.version("torch")}
        registry.register(self)
        self._vllm = CollectorRegistry()
        self._vllm.register(VllmNames(registry, lambda: self._served))
        self._requests = Counter("noria_requests", "Requests by outcome.", ["outcome"], registry=registry)
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        self._responses = Counter(
            "noria_http_requests",
            "Requests by method, route and status; 499: the client disconnected.",
            ["method", "route", "status"],
            registry=registry,
        )
        self.observe_broken_stream = Counter(
            "noria_broken_streams", "Streams that ended with an error after their status 200.", registry=registry
        ).inc
        self._key_requests = Counter(
            "noria_key_requests",
            "Requests by the name of their key, and by outcome.",
            ["key", "outcome"],
            registry=registry,
        )
        self._key_prompt_tokens = Counter(
            "noria_key_prompt_tokens", "Prompt tokens of finished requests, by key.", ["key"], registry=registry
        )
        self._key_generated_tokens = Counter(
            "noria_key_generated_tokens", "Tokens generated in finished requests, by key.", ["key"], registry=registry
        )
        self.observe_thought = Counter(
            "noria_reasoning_tokens", "Generated tokens of thoughts, with their marks.", registry=registry
        ).inc
        self.observe_prompt = Counter(
            "noria_prompt_tokens", "Prompt tokens of started requests.", registry=registry
        ).inc
        self._restarts = Counter("noria_engine_restarts", "Engines replaced after death or a hang.", registry=registry)
        self.observe_continued = Counter(
            "noria_requests_continued", "Sequences that went on with another engine after theirs.", registry=registry
        ).inc
        self._step_tokens = Histogram(registry, "noria_step_tokens", "Tokens computed in one step.", STEP_BUCKETS)
        self._queue = self._latency("queue", "Wait from submission to the first step of a sequence.")
        self._first = self._latency("time_to_first_token", "From a request's arrival to its first token.")
        self._between = self._latency("inter_token", "Between two tokens of one sequence.")
        self.observe_queue, self.observe_first_token = self._queue.observe, self._first.observe
        self.observe_image = self._latency(
            "image_decode", "Decoding of an image of a request, retries included."
        ).observe
        self._request = self._latency("request", "From a request's arrival to the end of its answer.")
        self.watch_connections = Gauge("noria_connections", "Open connections.", registry=registry).set_function
        self.watch_backlog = Gauge(
            "noria_prompt_tokens_waiting", "Tokens of prompts that wait for their first step.", registry=registry
        ).set_function
        self.watch_stored = Gauge(
            "noria_responses_stored", "Responses and conversations in --responses-store.", registry=registry
        ).set_function
        self.watch_stored_bytes = Gauge(
            "noria_responses_stored_bytes", "Bytes of them, as --responses-store-size counts them.", registry=registry
        ).set_function
        self._refused_connections = Counter(
            "noria_refused_connections",
            "Connections that were ended for their bytes, their silence or a limit.",
            ["reason"],
            registry=registry,
        )
        for reason in REFUSALS:
            self._refused_connections.labels(reason)
        self._ran = time.monotonic()
        self._lags: deque[float] = deque([0.0], maxlen=LAG_SAMPLES)
        lag = Gauge(
            "noria_event_loop_lag_seconds", "Largest delay of the event loop in the last 15 s.", registry=registry
        )
        lag.set_function(lambda: max(self._lags))

    def observe_refused_connection(self, reason: str) -> None:
        self._refused_connections.labels(reason).inc()

    def _latency(self, name: str, text: str) -> Histogram:
        return Histogram(self.registry, f"noria_{name}_seconds", text, LATENCY_BUCKETS)

    def describe_model(self, name: str, info: RunnerInfo) -> None:
        """Report the served model and how it runs."""
        self._served = name, info
        self.adapters.max_running = info.max_adapters

    def collect(self) -> Iterator[CounterMetricFamily | InfoMetricFamily]:
        yield InfoMetricFamily("noria_build", "Versions of Noria, Python and PyTorch.", self._build)
        if self._served is not None:
            yield InfoMetricFamily("noria_model", "The served model and how it runs.", _facts(*self._served))
        yield CounterMetricFamily("noria_generated_tokens", "Tokens generated.", self._generated)
        restarts = CounterMetricFamily(
            "noria_grammar_restarts", "Processes replaced that try or follow grammars.", labels=["process"]
        )
        restarts.add_metric(["trial"], self._restarted["trial"])
        restarts.add_metric(["follower"], self._engine.total("grammar_restarts"))
        yield restarts
        yield CounterMetricFamily(
            "noria_image_process_restarts", "Processes replaced that decode images.", self._restarted["images"]
        )

    def observe_report(self, report: Report) -> None:
        """Once a step."""
        self._engine.observe(report.stats)
        if report.stats.step_tokens:
            self._step_tokens.observe(report.stats.step_tokens)

    def observe_restart(self) -> None:
        self._engine.restart()
        self._restarts.inc()

    def observe_helper_restart(self, helper: str) -> None:
        """A helper process was replaced: that of "images", or of the "trial" of grammars."""
        self._restarted[helper] += 1

    @property
    def latest_waits(self) -> tuple[float | None, float | None]:
        """The latest wait for a first step, and for a first token, in seconds."""
        return self._queue.latest, self._first.latest

    def observe_tokens(self, n_tokens: int, seconds: float | None) -> None:
        """`n_tokens` came together, `seconds` after the token before them (None: they begin their sequence)."""
        self._generated += n_tokens
        gaps, gap = (n_tokens - 1, 0.0) if seconds is None else (n_tokens, seconds / n_tokens)
        self._between.observe(gap, gaps)

    def observe_response(self, method: str, route: str | None, status: int) -> None:
        """Once for each request. `route` is its route's path, None for a path without one."""
        known = method if method in METHODS else OTHER
        self._responses.labels(known, route or OTHER, str(status)).inc()

    def await_responses(self, methods: Iterable[str], route: str) -> None:
        """Begin the series of a route at 0."""
        for method, status in product(methods, AWAITED):
            self._responses.labels(method, route, str(status))

    def await_keys(self, names: Iterable[str]) -> None:
        """Begin the series of these keys at 0, or leave them as they are."""
        for name in names:
            for outcome in OUTCOMES:
                self._key_requests.labels(name, outcome)
            self._key_prompt_tokens.labels(name)
            self._key_generated_tokens.labels(name)

    def observe_request(self, outcome: str, seconds: float) -> None:
        self._requests.labels(outcome).inc()
        if outcome != "refused":
            self._request.observe(seconds)

    def observe_key(self, name: str, outcome: str, prompt_tokens: int, generated_tokens: int) -> None:
        """Once for each finished request that has a key."""
        self._key_requests.labels(name, outcome).inc()
        self._key_prompt_tokens.labels(name).inc(prompt_tokens)
        self._key_generated_tokens.labels(name).inc(generated_tokens)

    async def watch_event_loop(self) -> None:
        """Measure the delay of the event loop until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL
            await asyncio.sleep(LAG_INTERVAL)
            self._ran = time.monotonic()
            self._lags.append(max(0.0, loop.time() - due))

    def event_loop_silence(self) -> float:
        """Seconds since the event loop last ran. For any thread."""
        return time.monotonic() - self._ran

    def render(self, *, vllm: bool = False) -> bytes:
        """The metrics in Prometheus' text format; with `vllm` those that vLLM has too, under its names."""
        return generate_latest(self._vllm if vllm else self.registry)
