"""The Kubernetes manifests against published schemas and what Noria declares itself: flags and probes."""

import re
from pathlib import Path

import pytest

from service.api.operations.health import probed
from service.app import ROUTES
from service.commands.flags import PREFIX
from tests.deploy.cluster import validate
from tests.deploy.manifests import (
    BUILDS,
    CLOSING_SECONDS,
    KSERVE,
    NAMESPACE,
    PAGE,
    ROOT,
    RUNNING,
    SHARDED,
    Build,
    Object,
    built,
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

pytestmark = [pytest.mark.tools, needs_kubectl]


every_build = pytest.mark.parametrize("build", BUILDS, ids=" ".join)
every_pod = pytest.mark.parametrize("build", RUNNING, ids=" ".join)


@every_build
def test_objects_are_what_the_published_schemas_say(build: Build) -> None:
    for thing in built(build):
        validate(thing)


@every_pod
def test_objects_are_in_one_namespace_and_pods_are_restricted_there(build: Build) -> None:
    validate(NAMESPACE)
    assert NAMESPACE["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {thing["metadata"]["namespace"] for thing in built(build)} == {NAMESPACE["metadata"]["name"]}
    assert "kubectl apply -f deploy/kubernetes/namespace.yaml" in PAGE


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
            assert writable == {"/tmp", "/var/cache/noria"}  # HF_HOME of the image is in the latter


@every_build
def test_who_asks_for_a_gpu_has_the_image_for_it(build: Build) -> None:
    """The page says how to build it. KServe puts `runtimeVersion` in place of the tag of the runtime's image."""
    assert "docker build --target gpu -t noria:gpu ." in PAGE
    found = [(container["image"], container["resources"]) for container in containers(build)]
    models = [service["spec"]["predictor"]["model"] for service in of_kind(build, "InferenceService")]
    found += [(f"noria:{model['runtimeVersion']}", model["resources"]) for model in models]
    for image, resources in found:
        assert image == ("noria:gpu" if "nvidia.com/gpu" in resources["limits"] else "noria")


def configurations(thing: Object) -> set[str]:
    """The ConfigMaps whose variables an object's pods have."""
    own = [container for template in pod_templates(thing) for container in template["spec"]["containers"]]
    return {source["configMapRef"]["name"] for container in own for source in container["envFrom"]}


@every_pod
def test_pods_have_the_variables_of_their_build(build: Build) -> None:
    made = {found["metadata"]["name"] for found in of_kind(build, "ConfigMap") if "NORIA_MODEL" in found["data"]}
    named = [configurations(thing) for thing in built(build) if pod_templates(thing)]
    assert named == [made]


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


def file_of_page(name: str) -> str:
    """The text of an example that begins with a comment of its name."""
    found = re.search(rf"    # {name}\n((?:    .*\n|\n)+)", PAGE)
    assert found
    return re.sub(r"^    ", "", found[1], flags=re.MULTILINE)


def test_the_page_names_files_that_exist_and_builds_that_work(tmp_path: Path) -> None:
    """The example of a model, and the same under another name."""
    named = set(re.findall(r"deploy/kubernetes[\w/.-]*", PAGE))
    assert all((ROOT / path.rstrip("/.")).exists() for path in named)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    model = file_of_page("nemo/kustomization.yaml")
    for name in ("nemo", "tiny"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kustomization.yaml").write_text(model.replace("nemo", name))
    (tmp_path / "kustomization.yaml").write_text(file_of_page("kustomization.yaml"))
    things = kustomize(tmp_path)
    for thing in things:
        validate(thing)
    for name in ("nemo", "tiny"):
        own = [thing for thing in things if thing["metadata"]["name"].startswith(f"noria-config-{name}-")]
        (variables,) = own
        assert "NORIA_MAX_SEQUENCES" in variables["data"]
        (group,) = [thing for thing in things if thing["metadata"]["name"] == f"noria-sharded-{name}"]
        assert configurations(group) == {variables["metadata"]["name"]}
        (scaler,) = [thing for thing in of_instance(things, name) if thing["kind"] == "ScaledObject"]
        assert scaler["spec"]["scaleTargetRef"] == {key: group[key] for key in ("apiVersion", "kind")} | {
            "name": group["metadata"]["name"]
        }
        (route,) = [thing for thing in of_instance(things, name) if thing["kind"] == "HTTPRoute"]
        header = {"name": "X-Gateway-Model-Name", "value": variables["data"]["NORIA_SERVED_MODEL_NAME"]}
        matches = route["spec"]["rules"][0]["matches"]
        assert [(match["path"]["value"], match["headers"]) for match in matches] == [
            ("/v1", [header]),
            ("/api", [header]),
        ]
