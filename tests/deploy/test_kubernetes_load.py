"""How replicas are measured, scaled, chosen and sized: against Noria's own metrics and memory plan."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from deploy.kubernetes import rules
from deploy.kubernetes.resources import resources
from service import cli
from service.app import ROUTES
from tests.deploy.cluster import validate
from tests.deploy.manifests import (
    CPU,
    FULL,
    GPU,
    INSTANCE,
    KSERVE,
    KUBERNETES,
    PAGE,
    ROOT,
    SCALED,
    SHARDED,
    Build,
    Object,
    built,
    config,
    containers,
    kustomize,
    needs_kubectl,
    of_instance,
    of_kind,
    parsed,
    pod_templates,
    pods,
    selects,
)
from tests.deploy.series import known_metrics

pytestmark = [pytest.mark.tools, needs_kubectl]


def test_prometheus_finds_the_service_and_its_key() -> None:
    (monitor,) = of_kind(FULL, "ServiceMonitor")
    (service,) = [found for found in of_kind(FULL, "Service") if found["metadata"]["name"] == "noria"]
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == "noria"  # the job that dashboard and alerts ask for
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] in {route.path for route in ROUTES}
    credentials = endpoint["authorization"]["credentials"]
    (keys,) = [volume["secret"] for volume in pods(FULL)[0]["spec"]["volumes"] if "secret" in volume]
    assert credentials["name"] == keys["secretName"]
    made = re.search(rf"create secret generic {keys['secretName']} (.*)", PAGE.replace("\\\n", ""))
    assert made
    assert set(re.findall(r"--from-literal=(\w+)=", made[1])) == {credentials["key"], keys["items"][0]["key"]}


def test_the_operator_gets_the_rules_and_the_dashboard_of_deploy() -> None:
    assert rules.MANIFEST.read_text() == rules.manifest(), "run python3 deploy/kubernetes/rules.py"
    (made,) = of_kind(FULL, "PrometheusRule")
    files = [yaml.safe_load((ROOT / f"deploy/prometheus/{name}.yml").read_text()) for name in ("objectives", "alerts")]
    assert made["spec"]["groups"] == [group for file in files for group in file["groups"]]
    (board,) = [found for found in of_kind(FULL, "ConfigMap") if "noria.json" in found["data"]]
    assert board["data"]["noria.json"] == (ROOT / "deploy/grafana/dashboards/noria.json").read_text()
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def queries(build: Build) -> list[str]:
    """What autoscalers ask for."""
    pod_metrics = [
        metric["pods"]["metric"]["name"]
        for found in of_kind(build, "HorizontalPodAutoscaler")
        for metric in found["spec"]["metrics"]
    ]
    triggers = [
        trigger["metadata"]["query"]
        for found in of_kind(build, "ScaledObject")
        for trigger in found["spec"]["triggers"]
    ]
    scaling = [found["spec"]["predictor"]["autoScaling"]["metrics"] for found in of_kind(build, "InferenceService")]
    return pod_metrics + triggers + [metric["external"]["metric"]["query"] for several in scaling for metric in several]


@pytest.mark.parametrize(("build", "n_queries"), [(SCALED, 3), (FULL, 3), (KSERVE, 1)])
def test_autoscalers_ask_for_metrics_that_exist(build: Build, n_queries: int) -> None:
    asked = queries(build)
    assert len(asked) == n_queries
    space = next(thing["metadata"]["namespace"] for thing in built(build) if "namespace" in thing["metadata"])
    for query in asked:
        assert set(re.findall(r"noria_\w+", query)) <= known_metrics()
        assert set(re.findall(r'namespace="(\w+)"', query)) <= {space}


def test_kserve_scales_by_the_pods_of_the_inference_service() -> None:
    (service,) = of_kind(KSERVE, "InferenceService")
    (query,) = queries(KSERVE)
    assert f'pod=~"{service["metadata"]["name"]}-predictor-.+"' in query


def models(folder: Path, overlay: str, scaler: str) -> tuple[Object, ...]:
    """What a namespace `team` with two models has, as docs/kubernetes.md writes them."""
    (folder / "deploy").symlink_to(ROOT / "deploy")
    for name in MODELS:
        (folder / name).mkdir()
        model = {
            "namespace": "team",
            "nameSuffix": f"-{name}",
            "labels": [{"pairs": {INSTANCE: name}, "includeSelectors": True, "includeTemplates": True}],
            "resources": [f"../deploy/kubernetes/overlays/{overlay}"],
            "components": [f"../deploy/kubernetes/components/{part}" for part in (scaler, "gateway")],
            "transformers": ["../deploy/kubernetes/components/keda/query"],
        }
        (folder / name / "kustomization.yaml").write_text(yaml.safe_dump(model))
    own = {"namespace": "team", "resources": [*MODELS], "components": ["deploy/kubernetes/components/monitoring"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(own))
    return kustomize(folder)


MODELS = ("chat", "code")


@pytest.mark.parametrize(
    ("overlay", "scaler"), [("cpu", "keda"), ("cpu", "hpa"), ("gpu", "keda"), ("gpu", "hpa"), ("sharded", "keda")]
)
def test_models_in_a_namespace_share_no_pods(overlay: str, scaler: str, tmp_path: Path) -> None:
    things = models(tmp_path, overlay, scaler)
    for thing in things:
        validate(thing)
    for name, other in (MODELS, MODELS[::-1]):
        own = of_instance(things, name)
        found = {kind: [thing for thing in own if thing["kind"] == kind] for kind in {thing["kind"] for thing in own}}
        own_pods, others = (
            [template for thing in of_instance(things, instance) for template in pod_templates(thing)]
            for instance in (name, other)
        )
        assert {"PodDisruptionBudget", "NetworkPolicy", "Service", "InferencePool"} <= set(found)
        for selector in selectors(own):
            assert any(selects(selector, template) for template in own_pods)
            assert not any(selects(selector, template) for template in others)
        for trigger in [trigger for thing in found.get("ScaledObject", ()) for trigger in thing["spec"]["triggers"]]:
            assert (
                f'{{namespace="team", app_kubernetes_io_instance="{name}", job="noria"}}'
                in trigger["metadata"]["query"]
            )
        names = {(thing["kind"], thing["metadata"]["name"]) for thing in own}
        assert all(text.endswith((f"-{name}", *(f"-{name}-{end}" for end in hashes(own)))) for _, text in names)
        assert references(own) <= names | ({("Deployment", "noria")} if overlay == "sharded" else set())


def hashes(things: Sequence[Object]) -> set[str]:
    """What kustomize writes behind the names of ConfigMaps."""
    return {thing["metadata"]["name"].rpartition("-")[2] for thing in things if thing["kind"] == "ConfigMap"}


def references(things: Sequence[Object]) -> set[tuple[str, str]]:
    """The kinds and names of what objects of other projects name: kustomize does not know these by itself."""
    found = set()
    for thing in things:
        spec = thing.get("spec", {})
        if "scaleTargetRef" in spec:
            found.add((spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]))
        if thing["kind"] == "InferencePool":
            found.add(("Service", spec["endpointPickerRef"]["name"]))
        if thing["kind"] == "HTTPRoute":
            found |= {(end["kind"], end["name"]) for rule in spec["rules"] for end in rule["backendRefs"]}
        if thing["kind"] == "Deployment" and "picker" in thing["metadata"]["name"]:
            (picker,) = spec["template"]["spec"]["containers"]
            (pool,) = [text.partition("=")[2] for text in picker["args"] if text.startswith("--pool-name=")]
            values = {f"$({variable['name']})": variable.get("value") for variable in picker["env"]}
            found.add(("InferencePool", values[pool]))
    return found


def test_one_monitor_finds_the_services_of_all_models(tmp_path: Path) -> None:
    things = models(tmp_path, "cpu", "keda")
    (monitor,) = [thing for thing in things if thing["kind"] == "ServiceMonitor"]
    assert monitor["spec"]["targetLabels"] == [INSTANCE]
    labels = monitor["spec"]["selector"]["matchLabels"]
    services = [thing for thing in things if thing["kind"] == "Service"]
    found = [thing["metadata"]["name"] for thing in services if labels.items() <= thing["metadata"]["labels"].items()]
    assert found == [f"noria-{name}" for name in MODELS]


def selectors(things: Sequence[Object]) -> list[dict[str, str]]:
    """The labels by which objects select pods of Noria."""
    found = [thing["spec"]["selector"] for thing in things if thing["kind"] == "Service"]
    kinds = ("Deployment", "InferencePool", "PodDisruptionBudget")
    found += [thing["spec"]["selector"]["matchLabels"] for thing in things if thing["kind"] in kinds]
    networks = [thing["spec"] for thing in things if thing["kind"] == "NetworkPolicy"]
    found += [spec["podSelector"]["matchLabels"] for spec in networks]
    sides = [
        side["podSelector"]
        for spec in networks
        for rule in spec.get("ingress", ())
        for side in rule["from"]
        if "podSelector" in side
    ]
    found += [side["matchLabels"] for side in sides if side]
    return [labels for labels in found if labels["app.kubernetes.io/name"] == "noria"]


def test_both_autoscalers_scale_alike() -> None:
    (plain,), (keda,) = of_kind(SCALED, "HorizontalPodAutoscaler"), of_kind(FULL, "ScaledObject")
    assert plain["spec"]["behavior"] == keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    limits = [metric["pods"]["target"]["averageValue"] for metric in plain["spec"]["metrics"]]
    assert limits == [trigger["metadata"]["threshold"] for trigger in keda["spec"]["triggers"]]
    for build, scaler in ((SCALED, plain), (FULL, keda)):
        target = scaler["spec"]["scaleTargetRef"]
        (deployment,) = [
            found for found in of_kind(build, target["kind"]) if found["metadata"]["name"] == target["name"]
        ]
        assert "replicas" not in deployment["spec"], "an apply would undo the scaling"


def test_the_picker_reads_our_metrics_by_the_label_of_the_pods() -> None:
    (text,) = [
        found["data"]["picker-config.yaml"]
        for found in of_kind(FULL, "ConfigMap")
        if "picker" in found["metadata"]["name"]
    ]
    picker = yaml.safe_load(text)
    plugins = {plugin["type"]: plugin.get("parameters") for plugin in picker["plugins"]}
    (engine,) = plugins["core-metrics-extractor"]["engineConfigs"]
    labels = pods(FULL)[0]["metadata"]["labels"]
    assert {engine.pop("name")} == {labels["llm-d.ai/engine-type"], labels["inference.networking.k8s.io/engine-type"]}
    assert set(engine.values()) <= known_metrics()
    protocol = dict(re.findall(r"^\| (\w+) \| `(\w+Spec)` \| `\w+` \|$", PAGE, re.MULTILINE))
    assert set(protocol.values()) == set(engine)
    for profile in picker["schedulingProfiles"]:
        assert {plugin["pluginRef"] for plugin in profile["plugins"]} <= set(plugins)
    assert all("NORIA_API_KEY_FILE" not in found["data"] for found in of_kind(FULL, "ConfigMap"))
    (pool,) = of_kind(FULL, "InferencePool")
    assert pool["spec"]["targetPorts"] == [{"number": parsed(FULL, containers(FULL)[0])["port"]}]


NEMO = {"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8}
NEMO |= {"head_dim": 128, "intermediate_size": 14336, "vocab_size": 131072, "max_position_embeddings": 131072}
PUBLISHED = {
    "/models/Mistral-Nemo-Instruct-2407": NEMO,
    "mistralai/Mistral-7B-Instruct-v0.3": NEMO
    | {"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32768, "max_position_embeddings": 32768},
}
"""What the config.json of a model says of its sizes."""
COMMAND = re.compile(r"# noria plan ([^|]*) --json \|\s*(?:#\s*)?python3 (\S+) (\d+)$", re.MULTILINE)


@pytest.mark.parametrize("build", [CPU, GPU, SHARDED, KSERVE], ids=" ".join)
def test_requests_are_those_of_the_plan(build: Build, tmp_path: Path) -> None:
    """The command that a manifest names gives its numbers."""
    text = "\n".join(path.read_text() for path in sorted((KUBERNETES / build[0]).glob("*.yaml")))
    ((arguments, script, processors),) = COMMAND.findall(text)
    assert ROOT / script == KUBERNETES / "resources.py"
    model, *flags = shlex.split(arguments.replace("#", ""))  # a comment may have two lines
    if model in PUBLISHED:
        sizes = PUBLISHED[model] | {"model_type": "mistral", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
        (tmp_path / "config.json").write_text(json.dumps(sizes))
    served = config(build).get("NORIA_MODEL", model)
    assert served == model
    done = CliRunner().invoke(
        cli.build(["plan"]), ["plan", str(tmp_path) if model in PUBLISHED else model, *flags, "--json"]
    )
    plan = json.loads(done.stdout)
    pods_of_a_replica = [group["spec"]["leaderWorkerTemplate"]["size"] for group in of_kind(build, "LeaderWorkerSet")]
    assert [len(plan["ranks"])] == (pods_of_a_replica or [1])
    made = resources(plan, int(processors))
    shipped = [service["spec"]["predictor"]["model"] for service in of_kind(build, "InferenceService")]
    for container in shipped or containers(build):
        for bound, numbers in made.items():
            assert container["resources"][bound] == numbers | {
                "ephemeral-storage": container["resources"][bound]["ephemeral-storage"]
            }


def test_a_plan_that_does_not_fit_gives_no_requests() -> None:
    with pytest.raises(ValueError, match="--max-model-len 4096"):
        resources({"possible": False, "remedies": ["--max-model-len 4096"]}, 2)
