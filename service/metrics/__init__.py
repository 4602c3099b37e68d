"""Prometheus metrics, `noria_*`, in a registry of their own. Names are stable: dashboards and alerts use them."""

from service.metrics.histogram import Histogram
from service.metrics.server import Metrics

__all__ = ["Histogram", "Metrics"]
