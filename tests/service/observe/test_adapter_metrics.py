"""Metrics by adapter: which series there are, and which end."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from service.engine.messages import Stats
from service.observe.adapter_metrics import AdapterMetrics

NAMES = {1: "sql", 2: "law"}


def samples(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_series_begin_at_0_and_end_with_their_adapter() -> None:
    """Also where requests end after it: what clients and operators name must not make series for ever."""
    registry, names = CollectorRegistry(), dict(NAMES)
    metrics = AdapterMetrics(registry, Stats, ("stop", "error"))
    metrics.names = lambda: names
    zeros = [
        f'noria_lora_requests_total{{adapter="{name}",outcome="{end}"}}'
        for name in ("sql", "law")
        for end in ("stop", "error")
    ]
    assert [samples(registry)[name] for name in zeros] == [0, 0, 0, 0]
    metrics.observe("law", "stop", 7)
    assert samples(registry)['noria_lora_generated_tokens_total{adapter="law"}'] == 7
    del names[2]
    metrics.observe("law", "stop", 7)
    left = samples(registry)
    assert not [name for name in left if "law" in name]
    assert left["noria_lora_loaded"] == 1
    names[3] = "law"
    assert samples(registry)[zeros[2]] == 0, "an adapter of that name that is loaded later begins anew"
