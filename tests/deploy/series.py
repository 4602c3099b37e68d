"""The metrics that the service has, for the tests of all that asks for them."""

import re

from service.engine.messages import Beat, Report, Stats
from service.engine.picture import PoolPages
from service.observe.metrics import Metrics
from tests.fakes import make_info


def known_metrics() -> set[str]:
    """Every series that a scrape of a serving Noria can hold."""
    return {re.split(r"[{ ]", line)[0] for line in _scrape()}


def model_metrics() -> set[str]:
    """Those of which each model has its own."""
    return {line.partition("{")[0] for line in _scrape() if 'model="model"' in line}


def _scrape() -> list[str]:
    pools = (PoolPages(window=None, page_size=16, pages=3, held=1, shared=0, cached=1, free=1),)
    metrics = Metrics()
    metrics.memory_budget = lambda: 1
    model = metrics.of_model("model")
    model.stats = lambda: Stats(pools=pools)
    model.observe_key("team", "stop", 1, 1)
    model.observe_report(Report((), Stats()))
    model.observe_load("ok")
    model.observe_unload("idle")
    model.observe_beat(Beat(resident=1))
    model.describe(make_info())
    model.adapters.names = lambda: {1: "sql"}
    metrics.observe_response("GET", "/", 200)
    metrics.observe_refusal("team", "queue_full")
    metrics.observe_fields("/v1/completions", ["seed"], "refused")
    return [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
