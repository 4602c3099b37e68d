"""Prometheus metrics, `noria_*`, in a registry of their own. Names are stable: dashboards and alerts use them."""

from service.observe.metrics.histogram import Histogram
from service.observe.metrics.server import Metrics

__all__ = ["Histogram", "Metrics"]
