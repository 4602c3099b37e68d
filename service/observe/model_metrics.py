"""The metrics of models. Each series has the label `model`, the first name of its model."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from model.batch import RunnerInfo
from service.engine.messages import DRAFTERS, FINISHES, Beat, Report, Stats
from service.observe.adapter_metrics import AdapterCounts, Values
from service.observe.histogram import Histogram
from service.observe.journal import Journal

LATENCY_BUCKETS = tuple(
    milliseconds / 1000
    for milliseconds in (
        *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750),
        *(1_000, 1_500, 2_500, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000),
    )
)
STEP_BUCKETS = tuple(2.0**n for n in range(15))
OUTCOMES = (*FINISHES, "error", "refused")
DESCRIBED = ("family", "parameters", "quantize", "dtype", "kv_dtype", "attention", "device", "kernels")
"""Labels of the model's info that `RunnerInfo.description` has."""
COUNTERS = {
    "preemptions": ("preemptions", "Sequences preempted, to be recomputed later."),
    "lost_tokens": ("preempted_tokens", "Computed tokens that preempted sequences lost."),
    "queried_tokens": ("prefix_cache_queried_tokens", "Prompt tokens looked up in the prefix cache."),
    "hit_tokens": ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache."),
    "disk_tokens": ("prefix_cache_disk_tokens", "Prompt tokens of the hits that were read from --prefix-store."),
    "pages_written": ("prefix_store_written_pages", "Pages that were written to --prefix-store."),
    "pages_dropped": ("prefix_store_dropped_pages", "Pages that were not written: the disk was too slow, or failed."),
}
"""Field of `Stats` -> metric."""
DRAFTS = {"draft_tokens": ("drafted", "Draft tokens"), "accepted_draft_tokens": ("accepted", "Accepted draft tokens")}
"""Metric -> the last part of its fields of `Stats`, and text."""
TOTALS = (
    *(*COUNTERS, "grammar_restarts", "pages_damaged", "disk_errors"),
    *(f"{name}_{verb}" for name in DRAFTERS for verb, _ in DRAFTS.values()),
)
"""Fields of `Stats` that count from the start of the engine."""
Load = Literal["ok", "error"]
Unload = Literal["idle", "memory", "request", "removed"]
LOADS, UNLOADS = get_args(Load), get_args(Unload)


class Families:
    """The counters and histograms that models share, and the journal of all."""

    def __init__(self, registry: CollectorRegistry, journal: Journal) -> None:
        self.journal = journal

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"noria_{name}", text, ["model", *labels], registry=registry)

        def latency(name: str, text: str) -> Histogram:
            return Histogram(registry, f"noria_{name}_seconds", text, LATENCY_BUCKETS)

        self.requests = counter("requests", "Requests by outcome.", "outcome")
        about = "Requests by the name of their key, and by outcome."
        self.key_requests = counter("key_requests", about, "key", "outcome")
        self.key_prompt_tokens = counter("key_prompt_tokens", "Prompt tokens of finished requests, by key.", "key")
        about = "Tokens generated in finished requests, by key."
        self.key_generated_tokens = counter("key_generated_tokens", about, "key")
        self.thoughts = counter("reasoning_tokens", "Generated tokens of thoughts, with their marks.")
        self.prompts = counter("prompt_tokens", "Prompt tokens of started requests.")
        self.restarts = counter("engine_restarts", "Engines replaced after death or a hang.")
        self.canary = counter("canary_answers", "Answers that --canary got, by whether their bits were right.", "right")
        self.continued = counter("requests_continued", "Sequences that went on with another engine after theirs.")
        self.loads = counter("model_loads", "Loads of a model, by outcome.", "outcome")
        about = "Models unloaded: idle, to free memory for another, on request, or removed at SIGHUP."
        self.unloads = counter("model_unloads", about, "reason")
        self.step_tokens = Histogram(registry, "noria_step_tokens", "Tokens computed in one step.", STEP_BUCKETS)
        self.queue = latency("queue", "Wait from submission to the first step of a sequence.")
        about = "From a request's arrival to its first token, without its model's load."
        self.first = latency("time_to_first_token", about)
        self.between = latency("inter_token", "Between two tokens of one sequence.")
        self.request = latency("request", "From a request's arrival to the end of its answer.")


class ModelMetrics:
    """The counts of one model. `stats` gives the latest statistics of its engine, which count from its start.

    Counters are the sums of past engines, plus those of the present one. `waiting` gives the tokens of prompts that
    wait, and `loading` the requests that wait until the model is loaded. `memory` are the bytes that it takes by its
    plan, with those of one under its name that ends. `adapters` counts requests by LoRA adapter. A model that is not
    `served` any more has counters and histograms, but no gauges.

    Outcomes of requests: the finish reasons (the first of `FINISHES` that any choice has). "abort" also: the client
    disconnected. "error": the server failed after admission. "refused": 4xx, or 503 before admission.
    """

    def __init__(self, name: str, families: Families, keys: Sequence[str]) -> None:
        self.name = name
        self.stats: Callable[[], Stats] = Stats
        self.waiting: Callable[[], int] = int
        self.loading: Callable[[], int] = int
        self.memory = 0
        self.info: RunnerInfo | None = None
        self.served = True
        self.adapters = AdapterCounts(OUTCOMES, lambda: self.stats().adapters)
        self.generated = 0
        self.beat = Beat()
        self._families, self.journal = families, families.journal
        self._past: Tally[str] = Tally()
        self._past_processor = 0.0
        self._current = Stats()
        self._step_tokens = families.step_tokens.of(name)
        self._queue, self._first = families.queue.of(name), families.first.of(name)
        self._between, self._request = families.between.of(name), families.request.of(name)
        self.observe_queue, self.observe_first_token = self._queue.observe, self._first.observe
        self.observe_thought = families.thoughts.labels(name).inc
        self.observe_prompt = families.prompts.labels(name).inc
        self.observe_continued = families.continued.labels(name).inc
        self._restarts = families.restarts.labels(name)
        labels = (families.requests, OUTCOMES), (families.loads, LOADS), (families.unloads, UNLOADS)
        for counter, values in (*labels, (families.canary, ("true", "false"))):
            for value in values:
                counter.labels(name, value)
        self.await_keys(keys)

    def await_keys(self, names: Sequence[str]) -> None:
        """Begin the series of these keys at 0, or leave them as they are."""
        for key in names:
            for outcome in OUTCOMES:
                self._families.key_requests.labels(self.name, key, outcome)
            self._families.key_prompt_tokens.labels(self.name, key)
            self._families.key_generated_tokens.labels(self.name, key)

    def describe(self, info: RunnerInfo) -> None:
        self.info = info
        self.adapters.max_running = info.max_adapters

    def observe_report(self, report: Report) -> None:
        self._current = report.stats
        if report.stats.step_tokens:
            self._step_tokens.observe(report.stats.step_tokens)
        for update in report.updates:
            if update.finish == "error" and update.failure is None:
                self.journal.note("fault", update.fault or "the step was broken", model=self.name)

    def observe_beat(self, beat: Beat) -> None:
        """Take a beat of the engine that loads or serves, four times a second."""
        self.beat = beat

    def end_engine(self) -> None:
        """Count what the engine did as past: it has ended."""
        self._past_processor, self.beat = self._past_processor + self.beat.processor, Beat()
        self._past.update({field: getattr(self._current, field) for field in TOTALS})
        self._current = Stats()

    def observe_restart(self, reason: str, stacks: str) -> None:
        """Count an engine that ended for a reason, with the stacks of its threads if it could write them."""
        self.journal.note_death(self.name, reason, stacks)
        self.end_engine()
        self._restarts.inc()

    def observe_canary(self, right: bool) -> None:
        """Count an answer that the canary has compared with an earlier one."""
        self._families.canary.labels(self.name, str(right).lower()).inc()
        self.journal.n_wrong += not right

    def observe_load(self, outcome: Load) -> None:
        self._families.loads.labels(self.name, outcome).inc()
        self.journal.note("load", model=self.name, reason=outcome)

    def observe_unload(self, reason: Unload) -> None:
        self.end_engine()
        self.journal.note("unload", model=self.name, reason=reason)
        self._families.unloads.labels(self.name, reason).inc()

    @property
    def processor(self) -> float:
        """Return the seconds of processor time of all engines."""
        return self._past_processor + self.beat.processor

    @property
    def latest_waits(self) -> tuple[float | None, float | None]:
        """Return the latest wait for a first step, and for a first token, in seconds."""
        return self._queue.latest, self._first.latest

    def total(self, field: str) -> int:
        return self._past[field] + getattr(self._current, field)

    def drafts(self, verb: str) -> Values:
        """Count the draft tokens that were "drafted", or "accepted", by drafter."""
        return {(drafter,): self.total(f"{drafter}_{verb}") for drafter in DRAFTERS}

    def observe_tokens(self, n_tokens: int, seconds: float | None) -> None:
        """Count `n_tokens` that came together, `seconds` after the token before (None: they begin their sequence)."""
        self.generated += n_tokens
        gaps, gap = (n_tokens - 1, 0.0) if seconds is None else (n_tokens, seconds / n_tokens)
        self._between.observe(gap, gaps)

    def observe_request(self, outcome: str, seconds: float) -> None:
        self._families.requests.labels(self.name, outcome).inc()
        if outcome != "refused":
            self._request.observe(seconds)

    def observe_key(self, key: str, outcome: str, prompt_tokens: int, generated_tokens: int) -> None:
        self._families.key_requests.labels(self.name, key, outcome).inc()
        self._families.key_prompt_tokens.labels(self.name, key).inc(prompt_tokens)
        self._families.key_generated_tokens.labels(self.name, key).inc(generated_tokens)

    def pages(self) -> Values:
        """Count the pages of the KV cache by window and state."""
        return {
            ("full" if pool.window is None else str(pool.window), state): getattr(pool, state)
            for pool in self.stats().pools
            for state in ("held", "cached", "free")
        }

    def usage(self) -> float:
        """Return the share of held pages in the fullest pool."""
        pools = self.stats().pools
        return max((pool.held / max(1, pool.held + pool.cached + pool.free) for pool in pools), default=0.0)

    def cache(self) -> dict[str, str] | None:
        """Tell the size of the largest pool of pages, in vLLM's words; None before the model is loaded."""
        if (info := self.info) is None:
            return None
        n_pages = max(pool.n_pages for pool in info.pools)
        return {"block_size": str(info.page_size), "num_gpu_blocks": str(n_pages)}

    def facts(self) -> dict[str, str] | None:
        """Tell how the model runs; None before it is loaded."""
        if (info := self.info) is None:
            return None
        limits = {"context": info.max_model_len, "sequences": info.max_sequences, "step_tokens": info.max_step_tokens}
        facts = {label: str(info.description.get(label, "")) for label in DESCRIBED}
        return {**facts, **{label: str(limit) for label, limit in limits.items()}}


class ModelsCollector(Collector):
    """A reader of the engines' statistics, at the request of Prometheus: they cost a step nothing."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.models: dict[str, ModelMetrics] = {}
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        served = [model for model in self.models.values() if model.served]
        gauge, total = partial(_family, GaugeMetricFamily, served), partial(_family, CounterMetricFamily, served)
        counter = partial(_family, CounterMetricFamily, self.models.values())
        yield gauge("requests_running", "Sequences being computed.", lambda m: m.stats().running)
        about = "Sequences waiting to be computed, and requests waiting until the model is loaded."
        yield gauge("requests_waiting", about, lambda m: m.stats().waiting + m.loading())
        yield gauge("kv_pages", "Pages of the KV cache.", ModelMetrics.pages, "window", "state")
        yield gauge("kv_usage_ratio", "Share of held pages in the fullest pool.", ModelMetrics.usage)
        about = "Memory of the engine process in RAM, mapped weights included."
        yield gauge("engine_resident_memory_bytes", about, lambda m: m.beat.resident)
        yield gauge("model_memory_bytes", "Memory that a loaded model takes by its plan.", lambda m: m.memory)
        about = "Tokens of prompts that wait for their first step."
        yield gauge("prompt_tokens_waiting", about, lambda m: m.waiting())
        about = "Processor time of the engine processes, of all threads."
        yield counter("engine_cpu_seconds", about, lambda m: m.processor)
        yield counter("generated_tokens", "Tokens generated.", lambda m: m.generated)
        for field, (name, text) in COUNTERS.items():
            yield counter(name, text, methodcaller("total", field))
        for name, (verb, text) in DRAFTS.items():
            yield counter(name, f"{text}, by who drafts.", methodcaller("drafts", verb), "drafter")
        yield _family(InfoMetricFamily, served, "model", "The served models and how they run.", ModelMetrics.facts)
        about = "The KV cache: tokens of a page, and pages of the largest pool."
        yield _family(InfoMetricFamily, served, "cache_config", about, ModelMetrics.cache)
        yield gauge("lora_loaded", "LoRA adapters that requests may name.", lambda m: len(m.adapters.names()))
        about = "Requests by LoRA adapter and outcome."
        yield total("lora_requests", about, lambda m: m.adapters.requests(), "adapter", "outcome")
        about = "Tokens generated in finished requests, by adapter."
        yield total("lora_generated_tokens", about, lambda m: m.adapters.generated(), "adapter")
        about = "Sequences being computed."
        yield gauge("lora_requests_running", about, lambda m: m.adapters.used("running"), "adapter")
        yield gauge("lora_requests_waiting", "Sequences that wait.", lambda m: m.adapters.used("waiting"), "adapter")
        about = "The time of this sample. Its labels are the adapters that run and wait, and how many may run."
        labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        # all names of a model in one series, as the inference gateway reads them
        yield gauge("lora_requests_info", about, lambda m: m.adapters.in_use(), *labels)


def _family(
    kind: type[Any], models: Iterable[ModelMetrics], name: str, text: str, value: Callable[..., Any], *labels: str
) -> Metric:
    """Make a metric of a value of each model; with more labels, of its values by them. None is no value."""
    family: Any = kind(f"noria_{name}", text, labels=["model", *labels])
    for model in models:
        found = value(model)
        for of, one in (found if labels else {(): found}).items():
            if one is not None:
                family.add_metric([model.name, *of], one)
    return family
