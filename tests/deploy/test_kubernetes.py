"""The Kubernetes manifests against published schemas, kubectl, and what Noria itself declares: flags, probes, metrics."""

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from deploy.kubernetes.resources import resources
from service import cli
from service.api.operations.health import probed
from service.app import ROUTES
from service.commands.flags import PREFIX
from tests.deploy.manifests import (
    BUILDS,
    CRDS,
    HAS_KUBECTL,
    KUBERNETES,
    Build,
    Object,
    built,
    dry_run,
    kustomize,
    of_kind,
    pods,
    validate,
)
from tests.deploy.test_observation import known_metrics

pytestmark = pytest.mark.skipif(not HAS_KUBECTL, reason="kubectl is not installed: it builds the overlays")

ROOT = KUBERNETES.parents[1]
PAGE = (ROOT / "docs/kubernetes.md").read_text()
SHARDED, KSERVE, SCALED = BUILDS[2], BUILDS[-1], BUILDS[4]
RUNNING = BUILDS[:-1]
"""The builds with pods of our own; KServe makes its own."""
CLOSING_SECONDS = 5
"""What docs/operations.md allows for connections to close after a drain."""
CPU, GPU = BUILDS[:2]


def ids(build: Build) -> str:
    return " ".join(build)


every_build = pytest.mark.parametrize("build", BUILDS, ids=ids)
every_pod = pytest.mark.parametrize("build", RUNNING, ids=ids)


def containers(build: Build) -> list[Object]:
    """All containers with Noria."""
    own = [template["spec"]["containers"] for template in pods(build)]
    runtimes = [runtime["spec"]["containers"] for runtime in of_kind(build, "ServingRuntime")]
    return [container for several in own + runtimes for container in several]


def config(build: Build) -> dict[str, str]:
    """The variables of the generated ConfigMap."""
    return next((found["data"] for found in of_kind(build, "ConfigMap") if "NORIA_MODEL" in found["data"]), {})


def parsed(build: Build, container: Object) -> dict[str, Any]:
    """What the command line of `noria serve` gets in a container. Raises for a flag or a value that it refuses."""
    args = [text.replace("$(LWS_GROUP_SIZE)", "2") for text in container.get("args", [])]
    args = args[args.index("serve") + 1 :] if "serve" in args else args
    serve = get_command(cli.build(["serve"])).commands["serve"]  # type: ignore[attr-defined]
    known = {parameter.envvar for parameter in serve.params}
    assert set(config(build)) <= known
    with pytest.MonkeyPatch.context() as patch:
        for name, value in config(build).items():
            patch.setenv(name, value)
        return dict(serve.make_context("serve", args).params)


@every_build
def test_objects_are_what_the_published_schemas_say(build: Build) -> None:
    for thing in built(build):
        validate(thing)


@every_build
def test_kubectl_would_create_each_object(build: Build, tmp_path: Path) -> None:
    created = dry_run(built(build), tmp_path)
    assert [name.split("/")[1] for name in created] == [thing["metadata"]["name"] for thing in built(build)]


@pytest.mark.parametrize("kind", ["Deployment", *(kind for _, kind in CRDS)])
def test_a_misspelled_field_is_refused(kind: str) -> None:
    thing = next(thing for build in BUILDS for thing in of_kind(build, kind))
    wrong = copy.deepcopy(thing)
    wrong["spec"]["replica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        validate(wrong)


@every_pod
def test_objects_are_in_one_namespace_and_pods_are_restricted_there(build: Build) -> None:
    (namespace,) = of_kind(build, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    others = {thing["metadata"]["namespace"] for thing in built(build) if thing is not namespace}
    assert others == {namespace["metadata"]["name"]}


@every_build
def test_containers_are_confined(build: Build) -> None:
    assert containers(build)
    around = [template["spec"]["securityContext"] for template in pods(build)] or [{}]
    for outer in around:
        for container in containers(build):
            security = outer | container["securityContext"]
            assert security["runAsNonRoot"] is True
            assert f"USER {security['runAsUser']}:{security['runAsGroup']}" in (ROOT / "Dockerfile").read_text()
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["requests"])
            limits = container["resources"]["limits"]
            assert container["resources"]["requests"].items() <= limits.items()
            writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
            assert writable == {
                "/tmp",
                "/var/cache/noria",
            }  # NORIA_CACHE_DIR and HF_HOME of the image are in the latter


@every_pod
def test_pods_hold_no_credentials_of_the_cluster(build: Build) -> None:
    for template in pods(build):
        assert template["spec"]["automountServiceAccountToken"] is False


@every_build
def test_flags_and_variables_are_those_of_serve(build: Build) -> None:
    for container in containers(build):
        values = parsed(build, container)
        assert values["health_port"]
        assert values["log_format"] == "json"
        assert not values["api_keys"]
        assert not any("key" in text.lower() for text in container.get("args", [])), "keys come from files"


@every_build
def test_probes_ask_what_the_port_for_probes_answers(build: Build) -> None:
    paths = {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/live"}
    assert all(probed(None, path) and path in {route.path for route in ROUTES} for path in paths.values())
    serving = [container for container in containers(build) if "ports" in container]
    assert serving
    for container in serving:
        values = parsed(build, container)
        ports = {port.get("name"): port["containerPort"] for port in container["ports"]}
        assert values["port"] in ports.values()
        for probe, path in paths.items():
            asked = container[probe]["httpGet"]
            assert asked["path"] == path
            assert ports.get(asked["port"], asked["port"]) == values["health_port"]


def graces(build: Build) -> list[tuple[int, Object]]:
    own = [
        (template["spec"]["terminationGracePeriodSeconds"], template["spec"]["containers"][0])
        for template in pods(build)
    ]
    predictors = [service["spec"]["predictor"] for service in of_kind(build, "InferenceService")]
    return own + [(predictor["terminationGracePeriodSeconds"], containers(build)[0]) for predictor in predictors]


@every_build
def test_a_drain_ends_before_the_pod_is_killed(build: Build) -> None:
    assert graces(build)
    for grace, container in graces(build):
        wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        drain = parsed(build, container)["drain_timeout"] if "ports" in container else 0
        assert grace > wait + drain + CLOSING_SECONDS


def test_ranks_start_and_end_together() -> None:
    from torch.distributed.run import get_args_parser

    (group,) = of_kind(SHARDED, "LeaderWorkerSet")
    leader, worker = (template["spec"]["containers"][0] for template in pods(SHARDED))
    assert leader["args"] == worker["args"]
    asked = get_args_parser().parse_args([re.sub(r"\$\(LWS_\w+\)", "1", text) for text in leader["args"]])
    assert asked.module
    assert asked.training_script == "service"
    assert re.findall(r"--([\w-]+)=\$\((LWS_\w+)\)", " ".join(leader["args"])) == [
        ("nnodes", "LWS_GROUP_SIZE"),
        ("node-rank", "LWS_WORKER_INDEX"),
        ("master-addr", "LWS_LEADER_ADDRESS"),
        ("pipeline-parallel-size", "LWS_GROUP_SIZE"),
    ]
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
    drain = parsed(SHARDED, leader)["drain_timeout"] + CLOSING_SECONDS
    assert asked.shutdown_timeout >= drain
    leaves = [container["lifecycle"]["preStop"]["sleep"]["seconds"] for container in (leader, worker)]
    assert leaves[1] >= leaves[0] + drain
    assert pods(SHARDED)[0]["spec"]["terminationGracePeriodSeconds"] > leaves[0] + asked.shutdown_timeout


@every_pod
def test_a_service_sets_no_variable_of_a_flag(build: Build) -> None:
    """Kubernetes sets NORIA_PORT for a Service named noria; --port reads it too."""
    names = {service["metadata"]["name"] for service in of_kind(build, "Service")}
    assert "noria" in names
    for template in pods(build):
        assert template["spec"]["enableServiceLinks"] is False
    assert not names & {group["metadata"]["name"] for group in of_kind(build, "LeaderWorkerSet")}, (
        "its Service has its name"
    )


def test_kserve_pods_take_no_port_from_such_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}PORT", "tcp://10.0.0.1:80")
    (container,) = containers(KSERVE)
    assert parsed(KSERVE, container)["port"] == 8080


def selects(labels: dict[str, str], template: Object) -> bool:
    return labels.items() <= template["metadata"]["labels"].items()


@every_pod
def test_selectors_find_the_pods_they_mean(build: Build) -> None:
    first, *others = pods(build)
    (service,) = [found for found in of_kind(build, "Service") if found["metadata"]["name"] == "noria"]
    pools = [pool["spec"]["selector"]["matchLabels"] for pool in of_kind(build, "InferencePool")]
    for labels in [service["spec"]["selector"], *pools]:
        assert [selects(labels, template) for template in (first, *others)] == [True, *(False for _ in others)]
    (budget,) = of_kind(build, "PodDisruptionBudget")
    networks = [policy["spec"]["podSelector"] for policy in of_kind(build, "NetworkPolicy")]
    for selector in [budget["spec"]["selector"], *networks]:
        assert all(selects(selector["matchLabels"], template) for template in (first, *others))


def test_prometheus_finds_the_service_and_its_key() -> None:
    (monitor,) = of_kind(SCALED, "ServiceMonitor")
    (service,) = [found for found in of_kind(SCALED, "Service") if found["metadata"]["name"] == "noria"]
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == "noria"  # the job that dashboard and alerts ask for
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] in {route.path for route in ROUTES}
    credentials = endpoint["authorization"]["credentials"]
    (keys,) = [volume["secret"] for volume in pods(SCALED)[0]["spec"]["volumes"] if "secret" in volume]
    assert credentials["name"] == keys["secretName"]
    made = re.search(rf"create secret generic {keys['secretName']} (.*)", PAGE.replace("\\\n", ""))
    assert made
    assert set(re.findall(r"--from-literal=(\w+)=", made[1])) == {credentials["key"], keys["items"][0]["key"]}


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


@pytest.mark.parametrize(("build", "n_queries"), [(BUILDS[3], 3), (SCALED, 3), (KSERVE, 1)])
def test_autoscalers_ask_for_metrics_that_exist(build: Build, n_queries: int) -> None:
    asked = queries(build)
    assert len(asked) == n_queries
    space = next(thing["metadata"]["namespace"] for thing in built(build) if "namespace" in thing["metadata"])
    for query in asked:
        assert set(re.findall(r"noria_\w+", query)) <= known_metrics()
        assert set(re.findall(r'namespace="(\w+)"', query)) <= {space}


def test_both_autoscalers_scale_alike() -> None:
    (plain,), (keda,) = of_kind(BUILDS[3], "HorizontalPodAutoscaler"), of_kind(SCALED, "ScaledObject")
    assert plain["spec"]["behavior"] == keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    limits = [metric["pods"]["target"]["averageValue"] for metric in plain["spec"]["metrics"]]
    assert limits == [trigger["metadata"]["threshold"] for trigger in keda["spec"]["triggers"]]
    for build, scaler in ((BUILDS[3], plain), (SCALED, keda)):
        target = scaler["spec"]["scaleTargetRef"]
        (deployment,) = [
            found for found in of_kind(build, target["kind"]) if found["metadata"]["name"] == target["name"]
        ]
        assert "replicas" not in deployment["spec"], "an apply would undo the scaling"


def test_the_picker_reads_our_metrics_by_the_label_of_the_pods() -> None:
    (text,) = [
        found["data"]["picker-config.yaml"]
        for found in of_kind(SCALED, "ConfigMap")
        if "picker" in found["metadata"]["name"]
    ]
    picker = yaml.safe_load(text)
    plugins = {plugin["type"]: plugin.get("parameters") for plugin in picker["plugins"]}
    (engine,) = plugins["core-metrics-extractor"]["engineConfigs"]
    labels = pods(SCALED)[0]["metadata"]["labels"]
    assert {engine.pop("name")} == {labels["llm-d.ai/engine-type"], labels["inference.networking.k8s.io/engine-type"]}
    assert set(engine.values()) <= known_metrics()
    protocol = dict(re.findall(r"^\| (\w+) \| `(\w+Spec)` \| `\w+` \|$", PAGE, re.MULTILINE))
    assert set(protocol.values()) == set(engine)
    for profile in picker["schedulingProfiles"]:
        assert {plugin["pluginRef"] for plugin in profile["plugins"]} <= set(plugins)
    assert all("NORIA_API_KEY_FILE" not in found["data"] for found in of_kind(SCALED, "ConfigMap"))
    (pool,) = of_kind(SCALED, "InferencePool")
    assert pool["spec"]["targetPorts"] == [{"number": parsed(SCALED, containers(SCALED)[0])["port"]}]


NEMO = {"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8}
NEMO |= {"head_dim": 128, "intermediate_size": 14336, "vocab_size": 131072, "max_position_embeddings": 131072}
PUBLISHED = {
    "/models/Mistral-Nemo-Instruct-2407": NEMO,
    "mistralai/Mistral-7B-Instruct-v0.3": NEMO
    | {"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32768, "max_position_embeddings": 32768},
}
"""What the config.json of a model says of its sizes."""
COMMAND = re.compile(r"# noria plan ([^|]*) --json \|\s*(?:#\s*)?python3 (\S+) (\d+)$", re.MULTILINE)


@pytest.mark.parametrize("build", [CPU, GPU, SHARDED, KSERVE], ids=ids)
def test_requests_are_those_of_the_plan(build: Build, tmp_path: Path) -> None:
    """The command that a manifest names gives its numbers."""
    text = "\n".join(path.read_text() for path in sorted((KUBERNETES / build[0]).glob("*.yaml")))
    ((arguments, script, processors),) = COMMAND.findall(text)
    assert ROOT / script == KUBERNETES / "resources.py"
    model, *flags = shlex.split(arguments)
    if model in PUBLISHED:
        sizes = PUBLISHED[model] | {"model_type": "mistral", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
        (tmp_path / "config.json").write_text(json.dumps(sizes))
    served = config(build).get("NORIA_MODEL", model)
    assert served == model
    done = CliRunner().invoke(
        cli.build(["plan"]), ["plan", str(tmp_path) if model in PUBLISHED else model, *flags, "--json"]
    )
    made = resources(json.loads(done.stdout), int(processors))
    shipped = [service["spec"]["predictor"]["model"] for service in of_kind(build, "InferenceService")]
    for container in shipped or containers(build):
        for bound, numbers in made.items():
            assert container["resources"][bound] == numbers | {
                "ephemeral-storage": container["resources"][bound]["ephemeral-storage"]
            }


def test_a_plan_that_does_not_fit_gives_no_requests() -> None:
    with pytest.raises(ValueError, match="--max-model-len 4096"):
        resources({"possible": False, "remedies": ["--max-model-len 4096"]}, 2)


def test_the_page_names_files_that_exist_and_builds_that_work(tmp_path: Path) -> None:
    named = set(re.findall(r"deploy/kubernetes[\w/.-]*", PAGE))
    assert all((ROOT / path.rstrip("/.")).exists() for path in named)
    example = re.search(r"    # kustomization.yaml\n((?:    .*\n|\n)+)", PAGE)
    assert example
    text = re.sub(r"^    ", "", example[1], flags=re.MULTILINE)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "kustomization.yaml").write_text(text)
    things = kustomize(tmp_path)
    for thing in things:
        validate(thing)
    (scaler,) = [thing for thing in things if thing["kind"] == "ScaledObject"]
    target = scaler["spec"]["scaleTargetRef"]
    assert any(
        (thing["apiVersion"], thing["kind"], thing["metadata"]["name"])
        == (target["apiVersion"], target["kind"], target["name"])
        for thing in things
    )
