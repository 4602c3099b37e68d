"""Prometheus and Grafana against the metrics that the service really has."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import trouble
from service.app import ROUTES
from service.observe.metrics import Metrics
from tests.deploy.series import known_metrics, model_metrics

pytestmark = pytest.mark.tools

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCS = [DEPLOY.parent / "README.md", *sorted((DEPLOY.parent / "docs").rglob("*.md"))]
METRIC = re.compile(r"\b(?:noria|process)_[a-z_]+(?![a-z_]*\()")
RECORDED = re.compile(r"\bnoria:[a-z0-9_]+:[a-z0-9_]+")
# In PromQL a name before "{", "[" or an operator; labels stand inside braces or after "by" and "on".
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/noria.json").read_text())


LIMIT = re.compile(r'(noria_\w+_bucket)\{le="([^"]+)"\}')
RULES = ("objectives.yml", "alerts.yml")


def rules(*names: str) -> list[dict[str, Any]]:
    """Alerts and recording rules."""
    groups = [yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["groups"] for name in names or RULES]
    return [rule for file in groups for group in file for rule in group["rules"]]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def dashboard_targets() -> list[dict[str, Any]]:
    return [target for panel in DASHBOARD["panels"] for target in panel["targets"]]


def dashboard_expressions() -> list[str]:
    return [target["expr"] for target in dashboard_targets()]


@pytest.mark.parametrize("expression", [*dashboard_expressions(), *(rule["expr"] for rule in rules())])
def test_every_expression_asks_for_metrics_that_exist(expression: str) -> None:
    used = set(METRIC.findall(expression)) | ({"up", "vector"} & set(re.findall(r"\w+", expression)))
    used |= set(RECORDED.findall(expression))
    assert used
    assert used <= known_metrics() | recorded() | {"up", "vector"}


@pytest.mark.parametrize("target", dashboard_targets(), ids=lambda target: target["expr"])
def test_a_panel_shows_each_model(target: dict[str, Any]) -> None:
    """Those that the variable chooses, by their names; panels of keys have the sums."""
    if set(METRIC.findall(target["expr"])) & model_metrics():
        assert 'model=~"$model"' in target["expr"]
        is_sum = "{{key}}" in target["legendFormat"]
        assert is_sum or target.get("format") == "table" or target["legendFormat"].startswith("{{model}} ")
        assert is_sum or "by (" not in target["expr"] or "by (model" in target["expr"]


@pytest.mark.parametrize("alert", [rule["alert"] for rule in rules("alerts.yml")])
def test_an_alert_names_its_model(alert: str) -> None:
    (rule,) = (rule for rule in rules("alerts.yml") if rule["alert"] == alert)
    of_model = set(METRIC.findall(rule["expr"])) & model_metrics()
    assert ("$labels.model" in rule["annotations"]["summary"]) == bool(of_model or "noria:slo_good" in rule["expr"])


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_the_pages_name_metrics_that_exist(page: Path) -> None:
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in known_metrics()} | known_metrics()
    assert set(documented_metrics(page.read_text())) <= families


def documented_metrics(text: str) -> list[str]:
    """Names in code spans: `noria_kv_pages{window}`, and `noria_{queue,request}_seconds` for several."""
    names = []  # `noria_*` names all of them, and none
    for prefix, choices, rest in re.findall(r"\b(noria_[a-z_]*)(?:\{([a-z_]+(?:,[a-z_]+)+)\}(_[a-z_]+))?", text):
        if choices:
            names += [prefix + choice + rest for choice in choices.split(",")]
        elif not prefix.endswith("_"):
            names.append(prefix)
    return names


def anchors(page: Path) -> set[str]:
    return {trouble.anchor(title) for title in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


def test_panels_have_their_own_ids_and_the_provisioned_source() -> None:
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert {query["datasource"]["uid"] for query in [*dashboard_targets(), *DASHBOARD["panels"]]} == {sources[0]["uid"]}


promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")


def check(*arguments: str | Path) -> None:
    ran = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_objective_has_its_rules() -> None:
    """A target, and the share of good events over two windows, which differ in nothing else."""
    by_name: dict[str, dict[str, str]] = {}
    for rule in rules("objectives.yml"):
        by_name.setdefault(rule["record"], {})[rule["labels"]["slo"]] = rule["expr"]
    targets, short = by_name.pop("noria:slo_objective:ratio"), by_name.pop("noria:slo_good:ratio_rate5m")
    traffic = by_name.pop("noria:slo_traffic:increase1h")
    assert set(targets) == {"availability", "first_token", "inter_token", "queue"} == set(short) == set(traffic)
    assert by_name == {
        "noria:slo_good:ratio_rate1h": {slo: expr.replace("[5m]", "[1h]") for slo, expr in short.items()}
    }
    assert all(expression in dashboard_text() for expression in ("noria:slo_good:ratio_rate5m", "noria:slo_objective"))


def dashboard_text() -> str:
    return " ".join(dashboard_expressions())


def test_objectives_are_limits_of_buckets() -> None:
    metrics = Metrics()
    metrics.of_model("m")
    text = metrics.render().decode()
    limits = [found for rule in rules("objectives.yml") for found in LIMIT.findall(rule["expr"])]
    assert len(limits) == 6
    for name, limit in limits:
        assert f'{name}{{le="{limit}",model="m"}}' in text


def test_the_page_names_what_the_log_leaves_out() -> None:
    (section,) = re.findall(
        r"^## Logs\n(.*)", (DEPLOY.parent / "docs/operations.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (left_out,) = re.findall(r"Requests for (.*?) appear\s", section, re.DOTALL)
    assert set(re.findall(r"`(.+?)`", left_out)) == {route.path for route in ROUTES if route.policy.quiet}


@pytest.mark.parametrize("alert", [rule["alert"] for rule in rules("alerts.yml")])
def test_every_alert_has_a_remedy(alert: str) -> None:
    """A section of the page, by the alert's own name, that says what it means and what to do; the alert names it."""
    page = (DEPLOY.parent / "docs/operations.md").read_text()
    (section,) = re.findall(rf"^### {alert}\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^- \*\*(\w+)", section, re.MULTILINE) == ["Meaning", "Look", "Remedy"]
    (rule,) = [rule for rule in rules("alerts.yml") if rule["alert"] == alert]
    assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{alert.lower()}"
    assert f"](#{alert.lower()})" in page, "the list of alerts links to it"
    name, _, place = rule["annotations"]["explain_url"].partition("#")
    assert name == "docs/trouble.md"
    assert place in anchors(DEPLOY.parent / name)


def test_every_remedy_is_that_of_an_alert() -> None:
    page = (DEPLOY.parent / "docs/operations.md").read_text()
    assert set(re.findall(r"^### (Noria\w+)$", page, re.MULTILINE)) == {rule["alert"] for rule in rules("alerts.yml")}


@promtool
def test_promtool_takes_the_scrape_configuration(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus"))
    (tmp_path / "api_key").write_text("key\n")
    config = folder / "prometheus.yml"
    text = config.read_text()
    assert "/run/secrets/api_key" in text
    config.write_text(text.replace("/run/secrets/api_key", str(tmp_path / "api_key")))
    check("check", "config", config)


@promtool
def test_promtool_takes_the_dashboards_expressions(tmp_path: Path) -> None:
    records = [
        {
            "record": f"panel:{n}",
            "expr": expression.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$model", ".*"),
        }
        for n, expression in enumerate(dashboard_expressions())
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    check("check", "rules", path)


@promtool
def test_the_alerts_fire_and_stay_silent() -> None:
    check("test", "rules", Path(__file__).with_name("alerts_test.yml"))


def test_every_alert_has_a_test() -> None:
    tested = yaml.safe_load(Path(__file__).with_name("alerts_test.yml").read_text())["tests"]
    cases = [case for test in tested for case in test["alert_rule_test"]]
    assert {rule["alert"] for rule in rules("alerts.yml")} == {
        case["alertname"] for case in cases if case["exp_alerts"]
    }
