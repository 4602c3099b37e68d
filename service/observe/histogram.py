"""A histogram by model that needs no lock, because only the event loop writes it."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Series:
    """The observations of one model, counted. Each takes less than a microsecond."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.latest: float | None = None

    def observe(self, value: float, times: int = 1) -> None:
        self.latest = value
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times


class Histogram(Collector):
    """The series of all models. `bounds` are the upper bounds of the buckets, in ascending order."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = bounds
        self._series: dict[str, Series] = {}
        registry.register(self)

    def of(self, model: str) -> Series:
        """Return the series of a model, which begins at 0."""
        return self._series.setdefault(model, Series(self._bounds))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._text, labels=["model"])
        for model, series in self._series.items():
            buckets = list(zip(names, accumulate(series.counts), strict=True))
            family.add_metric([model], buckets, series.sum)
        yield family
