"""The metrics of a replica in Ray's own export, which labels them with the replica."""

import asyncio
from collections.abc import Iterator
from typing import NoReturn

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample
from ray.serve.metrics import Gauge

from service.observe.metrics import Metrics

PERIOD_SECONDS = 5.0


class RayMetrics:
    """Copies every sample of `/metrics` into a gauge of Ray, under the same name and labels.

    Ray adds the prefix `ray_` and the labels `application`, `deployment` and `replica`. Its own counters and histograms
    can only be counted into; as a gauge each sample keeps the value that it has in `/metrics`. Runs on the event loop,
    in the actor of a replica.
    """

    def __init__(self, measured: Metrics) -> None:
        self._registry = measured.registry
        self._gauges: dict[str, Gauge] = {}

    async def export(self) -> NoReturn:
        """Copy now and every `PERIOD_SECONDS`."""
        while True:
            for sample, text in _samples(self._registry):
                self._gauge(sample, text).set(sample.value, dict(sample.labels))
            await asyncio.sleep(PERIOD_SECONDS)

    def _gauge(self, sample: Sample, text: str) -> Gauge:
        if sample.name not in self._gauges:
            self._gauges[sample.name] = Gauge(sample.name, text, tuple(sample.labels))
        return self._gauges[sample.name]


def _samples(registry: CollectorRegistry) -> Iterator[tuple[Sample, str]]:
    """Our samples, each with the text of its metric. Ray has its own metrics of processes."""
    for metric in registry.collect():
        for sample in metric.samples:
            if sample.name.startswith("noria_") and not sample.name.endswith("_created"):
                yield sample, metric.documentation
