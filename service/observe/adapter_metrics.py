"""Metrics by LoRA adapter. The label is the adapter's name. The series of an adapter end when it is unloaded."""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from service.engine.messages import AdapterStats

Family = CounterMetricFamily | GaugeMetricFamily


class AdapterCounts:
    """What requests to one model do with adapters.

    `names` gives the adapters by their numbers in the engine; `max_running` of them may run at a time.
    """

    def __init__(self, outcomes: Sequence[str]) -> None:
        self._outcomes = outcomes
        self.names: Callable[[], Mapping[int, str]] = dict
        self.max_running = 0
        self.requests: Tally[tuple[str, str]] = Tally()
        self.generated: Tally[str] = Tally()

    def observe(self, name: str, outcome: str, generated_tokens: int) -> None:
        """Once for each finished request that uses an adapter."""
        self.requests[name, outcome] += 1
        self.generated[name] += generated_tokens

    def forget(self) -> None:
        """Begin the series of new adapters at 0, and end those of adapters that are unloaded."""
        names = self.names().values()
        self.requests = Tally({key: self.requests[key] for key in product(names, self._outcomes)})
        self.generated = Tally({name: self.generated[name] for name in names})


def adapter_families(models: Mapping[str, tuple[AdapterCounts, Sequence[AdapterStats]]]) -> Iterator[Family]:
    """The metrics of the adapters of all models, each with what its engine says of them."""
    loaded = GaugeMetricFamily("noria_lora_loaded", "LoRA adapters that requests may name.", labels=["model"])
    labels = ["model", "adapter"]
    about = "Requests by LoRA adapter and outcome."
    requests = CounterMetricFamily("noria_lora_requests", about, labels=[*labels, "outcome"])
    about = "Tokens generated in finished requests, by adapter."
    generated = CounterMetricFamily("noria_lora_generated_tokens", about, labels=labels)
    running = GaugeMetricFamily("noria_lora_requests_running", "Sequences being computed.", labels=labels)
    waiting = GaugeMetricFamily("noria_lora_requests_waiting", "Sequences that wait.", labels=labels)
    info = GaugeMetricFamily(  # all names of a model in one series, as the inference gateway reads them
        "noria_lora_requests_info",
        "The time of this sample. Its labels are the adapters that run and wait, and how many may run.",
        labels=["model", "max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    for model, (counts, uses) in models.items():
        counts.forget()
        names, used = counts.names(), {item.adapter: item for item in uses}
        loaded.add_metric([model], len(names))
        for of_requests, n_requests in counts.requests.items():
            requests.add_metric([model, *of_requests], n_requests)
        for number, name in names.items():
            generated.add_metric([model, name], counts.generated[name])
            running.add_metric([model, name], used[number].running if number in used else 0)
            waiting.add_metric([model, name], used[number].waiting if number in used else 0)
        if counts.max_running:
            there = [item for item in used.values() if item.adapter in names]
            runs = ",".join(names[item.adapter] for item in there if item.running)
            waits = ",".join(names[item.adapter] for item in there if item.waiting)
            info.add_metric([model, str(counts.max_running), runs, waits], time.time())
    yield from (loaded, requests, generated, running, waiting, info)
