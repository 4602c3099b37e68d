"""Metrics by adapter: which series there are, and which end."""

from service.observe.metrics import Metrics

NAMES = {1: "sql", 2: "law"}


def samples(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.render().decode().splitlines() if line.startswith("noria_lora_")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_series_begin_at_0_and_end_with_their_adapter() -> None:
    """Also where requests end after it: what clients and operators name must not make series for ever."""
    metrics, names = Metrics(), dict(NAMES)
    adapters = metrics.of_model("base").adapters
    adapters.names = lambda: names
    zeros = [
        f'noria_lora_requests_total{{adapter="{name}",model="base",outcome="{end}"}}'
        for name in ("sql", "law")
        for end in ("stop", "error")
    ]
    assert [samples(metrics)[name] for name in zeros] == [0, 0, 0, 0]
    adapters.observe("law", "stop", 7)
    assert samples(metrics)['noria_lora_generated_tokens_total{adapter="law",model="base"}'] == 7
    del names[2]
    adapters.observe("law", "stop", 7)
    left = samples(metrics)
    assert not [name for name in left if "law" in name]
    assert left['noria_lora_loaded{model="base"}'] == 1
    names[3] = "law"
    assert samples(metrics)[zeros[2]] == 0, "an adapter of that name that is loaded later begins anew"


def test_adapters_of_two_models_are_counted_apart() -> None:
    metrics = Metrics()
    for model, tokens in (("base", 7), ("other", 4)):
        adapters = metrics.of_model(model).adapters
        adapters.names = lambda: NAMES
        adapters.observe("sql", "stop", tokens)
    found = samples(metrics)
    names = [f'noria_lora_generated_tokens_total{{adapter="sql",model="{model}"}}' for model in ("base", "other")]
    assert [found[name] for name in names] == [7, 4]
