"""Samples of `/metrics`, by their names and labels."""

from prometheus_client.parser import text_string_to_metric_families


def sample(text: str, name: str, **labels: str) -> float:
    """A sample of Prometheus' text; without the label `model`, the sum of those that differ in their model only."""
    lines = [
        f"{line}\n" for line in text.splitlines() if line.startswith(name)
    ]  # to parse all takes many times as long
    families = text_string_to_metric_families("".join(lines))
    samples = [item for family in families for item in family.samples if item.name == name]
    found = [item.value for item in samples if labels in (item.labels, _without_model(item.labels))]
    assert found, f"no sample {name} {labels}"
    return sum(found)


def _without_model(labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != "model"}
