"""Metrics by LoRA adapter. The label is the adapter's name. The series of an adapter end when it is unloaded."""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from service.engine.messages import Stats

Family = CounterMetricFamily | GaugeMetricFamily


class AdapterMetrics(Collector):
    """What requests do with adapters, read when Prometheus asks.

    `names` gives the adapters by their numbers in the engine; `max_running` of them may run at a time.
    """

    def __init__(self, registry: CollectorRegistry, stats: Callable[[], Stats], outcomes: Sequence[str]) -> None:
        self._stats = stats
        self._outcomes = outcomes
        self.names: Callable[[], Mapping[int, str]] = dict
        self.max_running = 0
        self._requests: Tally[tuple[str, str]] = Tally()
        self._generated: Tally[str] = Tally()
        registry.register(self)

    def observe(self, name: str, outcome: str, generated_tokens: int) -> None:
        """Once for each finished request that uses an adapter."""
        self._requests[name, outcome] += 1
        self._generated[name] += generated_tokens

    def collect(self) -> Iterator[Family]:
        names, used = self.names(), {item.adapter: item for item in self._stats().adapters}
        self._requests = Tally({key: self._requests[key] for key in product(names.values(), self._outcomes)})
        self._generated = Tally({name: self._generated[name] for name in names.values()})
        yield GaugeMetricFamily("noria_lora_loaded", "LoRA adapters that requests may name.", len(names))
        requests = CounterMetricFamily(
            "noria_lora_requests", "Requests by LoRA adapter and outcome.", labels=["adapter", "outcome"]
        )
        generated = CounterMetricFamily(
            "noria_lora_generated_tokens", "Tokens generated in finished requests, by adapter.", labels=["adapter"]
        )
        running = GaugeMetricFamily("noria_lora_requests_running", "Sequences being computed.", labels=["adapter"])
        waiting = GaugeMetricFamily("noria_lora_requests_waiting", "Sequences that wait.", labels=["adapter"])
        for labels, n_requests in self._requests.items():
            requests.add_metric(labels, n_requests)
        for number, name in names.items():
            generated.add_metric([name], self._generated[name])
            running.add_metric([name], used[number].running if number in used else 0)
            waiting.add_metric([name], used[number].waiting if number in used else 0)
        yield from (requests, generated, running, waiting)
        info = GaugeMetricFamily(  # all names in one series, as the inference gateway reads them
            "noria_lora_requests_info",
            "The time of this sample. Its labels are the adapters that run and wait, and how many may run.",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        if self.max_running:
            there = [item for item in used.values() if item.adapter in names]
            runs = ",".join(names[item.adapter] for item in there if item.running)
            waits = ",".join(names[item.adapter] for item in there if item.waiting)
            info.add_metric([str(self.max_running), runs, waits], time.time())
        yield info
