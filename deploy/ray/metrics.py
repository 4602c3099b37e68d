"""The metrics of a replica in Ray's own export, which labels them with the replica."""

from prometheus_client import CollectorRegistry
from ray.serve import metrics


class RayMetrics:
    """Copies"""

    def __init__(self, registry: CollectorRegistry) -> None:
        pass
