"""Prometheus metrics, `noria_*`, in a registry of their own: those of the server, and those of its models.

Names are stable: dashboards and alerts use them.
"""

import asyncio
import platform
import re
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import metadata
from itertools import product
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import generate_latest

from service import version
from service.errors.statuses import STATUSES
from service.observe.journal import Journal
from service.observe.machine import SystemCollector
from service.observe.model_metrics import LATENCY_BUCKETS, Families, ModelMetrics, ModelsCollector
from service.observe.vllm_names import VllmNames

REFUSALS = ("unread", *sorted({status.refused for status in STATUSES.values() if status.refused}))
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
OTHER = "other"
"""The label of any other method, of a path without a route, and of a field that no body declares: clients choose them,
so they must not make series."""
INDEX = re.compile(r"\[\d+\]")
AWAITED = (200, 500, 503)
"""Statuses of which each route that takes a body has a series from the start. `rate()` does not count what a series
begins with: without a sample of 0 an outage would be no part of the availability."""
LAG_INTERVAL = 0.25
LAG_SAMPLES = 60


class Metrics:
    """All metrics of the server. `fields` are the paths of fields that bodies declare.

    `of_model` has the counts of a model. Requests that name no served model count as those of the model "".
    `memory_budget` gives that of all models, None without one.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._models = ModelsCollector(registry)
        self.journal = Journal()
        self._families = Families(registry, self.journal)
        self._keys: tuple[str, ...] = ()
        self.fields: frozenset[str] = frozenset()
        self._restarted: Tally[str] = Tally()
        self.memory_budget: Callable[[], int | None] = lambda: None
        self._build = {"version": version(), "python": platform.python_version(), "torch": metadata.version("torch")}
        registry.register(self)
        registry.register(system := SystemCollector())
        self.read_system = system.read
        self._vllm = CollectorRegistry()
        models = self._models.models
        self._vllm.register(VllmNames(registry, lambda: {m.name for m in models.values() if m.info}))
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        latency = partial(Histogram, registry=registry, buckets=LATENCY_BUCKETS)
        about = "Requests by method, route and status; 499: the client disconnected."
        self._responses = counter("noria_http_requests", about, ["method", "route", "status"])
        about = "Refused requests to models, by the name of their key and the code of the error."
        self._refusals = counter("noria_refusals", about, ["key", "reason"])
        about = "Requests with a field that a 400 named (refused), or that passed without effect (ignored)."
        self._fields = counter("noria_request_fields", about, ["route", "field", "outcome"])
        about = "Streams that ended with an error after their status 200."
        self.observe_broken_stream = counter("noria_broken_streams", about).inc
        about = "Decoding of {} of a request, retries included."
        self.observe_image = latency("noria_image_decode_seconds", about.format("an image")).observe
        self.observe_audio = latency("noria_audio_decode_seconds", about.format("a recording")).observe
        self.watch_ready = gauge("noria_ready", "1 while the server takes requests.").set_function
        self.watch_connections = gauge("noria_connections", "Open connections.").set_function
        about = "Responses and conversations in --responses-store."
        self.watch_stored = gauge("noria_responses_stored", about).set_function
        about = "Bytes of them, as --responses-store-size counts them."
        self.watch_stored_bytes = gauge("noria_responses_stored_bytes", about).set_function
        about = "Connections that were ended for their bytes, their silence or a limit."
        self._refused_connections = counter("noria_refused_connections", about, ["reason"])
        for reason in REFUSALS:
            self._refused_connections.labels(reason)
        self._ran = time.monotonic()
        self._lags: deque[float] = deque([0.0], maxlen=LAG_SAMPLES)
        about = "Largest delay of the event loop in the last 15 s."
        gauge("noria_event_loop_lag_seconds", about).set_function(self.lag)

    def observe_refused_connection(self, reason: str) -> None:
        self._refused_connections.labels(reason).inc()

    def of_model(self, name: str) -> ModelMetrics:
        """Return the metrics of a model, which begin at 0."""
        if name not in self._models.models:
            self._models.models[name] = ModelMetrics(name, self._families, self._keys)
        return self._models.models[name]

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("noria_build", "Versions of Noria, Python and PyTorch.", self._build)
        about = "Processes replaced that try or follow grammars."
        restarts = CounterMetricFamily("noria_grammar_restarts", about, labels=["process"])
        followers = sum(model.total("grammar_restarts") for model in self._models.models.values())
        restarts.add_metric(["trial"], self._restarted["trial"])
        restarts.add_metric(["follower"], followers)
        yield restarts
        if (budget := self.memory_budget()) is not None:
            yield GaugeMetricFamily("noria_memory_budget_bytes", "Memory that all models may take together.", budget)
        for kind, what in (("image", "images"), ("audio", "audio")):
            name = f"noria_{kind}_process_restarts"
            yield CounterMetricFamily(name, f"Processes replaced that decode {what}.", self._restarted[what])

    def observe_helper_restart(self, helper: str) -> None:
        """Count a helper process that was replaced: of "images", of "audio", or of the "trial" of grammars."""
        self._restarted[helper] += 1
        self.journal.note("helper", reason=helper)

    def observe_fields(self, route: str, fields: Iterable[str], outcome: Literal["refused", "ignored"]) -> None:
        """Count one request. `fields` are paths such as "messages[0].mood"; the series has no index."""
        paths = {INDEX.sub("", name) for name in fields}
        for label in {path if path in self.fields else OTHER for path in paths}:
            self._fields.labels(route, label, outcome).inc()

    def observe_response(self, method: str, route: str | None, status: int) -> None:
        """Count a request. `route` is its route's path, None for a path without one."""
        known = method if method in METHODS else OTHER
        self._responses.labels(known, route or OTHER, str(status)).inc()

    def await_responses(self, methods: Iterable[str], route: str) -> None:
        """Begin the series of a route at 0."""
        for method, status in product(methods, AWAITED):
            self._responses.labels(method, route, str(status))

    def await_keys(self, names: Iterable[str]) -> None:
        """Begin the series of these keys at 0, or leave them as they are."""
        self._keys = tuple(names)
        for key, reason in product(("", *self._keys), ("queue_full", "rate_limit_exceeded")):
            self._refusals.labels(key, reason)
        for model in self._models.models.values():
            model.await_keys(self._keys)

    def observe_unnamed(self, outcome: str, key: str) -> None:
        """Count a request to a model that ended before its model was known. `key` is empty without one."""
        self._families.requests.labels("", outcome).inc()
        if key:
            self._families.key_requests.labels("", key, outcome).inc()

    def observe_refusal(self, key: str, reason: str) -> None:
        """Count a request to a model that was refused. `key` is empty without one."""
        self._refusals.labels(key, reason).inc()
        self.journal.refused[reason] += 1

    def lag(self) -> float:
        """Return the largest delay of the event loop in the last 15 s."""
        return max(self._lags)

    async def watch_event_loop(self) -> None:
        """Measure the delay of the event loop until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL
            await asyncio.sleep(LAG_INTERVAL)
            self._ran = time.monotonic()
            self._lags.append(max(0.0, loop.time() - due))

    def event_loop_silence(self) -> float:
        """Return the seconds since the event loop last ran. For any thread."""
        return time.monotonic() - self._ran

    def render(self, *, vllm: bool = False) -> bytes:
        """Return the metrics in Prometheus' text format; with `vllm` those that vLLM has too, under its names."""
        return generate_latest(self._vllm if vllm else self.registry)
