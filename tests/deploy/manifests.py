"""The manifests of deploy/kubernetes as kustomize builds them, and what Noria reads in their pods."""

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from typer.main import get_command

from service import cli
from service.settings import Settings

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
NAMESPACE = yaml.safe_load((KUBERNETES / "namespace.yaml").read_text())
PAGE = (ROOT / "docs/kubernetes.md").read_text()
needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed: it builds the overlays"
)

CLOSING_SECONDS = 5
"""What docs/operations.md allows for connections to close after a drain."""
INSTANCE = "app.kubernetes.io/instance"
Object = dict[str, Any]
Build = tuple[str, ...]
"""A folder to build, and the components to add."""
CPU: Build = ("overlays/cpu",)
GPU: Build = ("overlays/gpu",)
SHARDED: Build = ("overlays/sharded",)
SCALED: Build = ("overlays/cpu", "hpa")
FULL: Build = ("overlays/gpu", "keda", "monitoring", "gateway")
KSERVE: Build = ("kserve",)
RUNNING = (CPU, GPU, SHARDED, SCALED, FULL, (*SHARDED, "monitoring", "gateway"))
"""The builds with pods of our own. KServe makes its own."""
BUILDS = (*RUNNING, KSERVE)


def kustomize(folder: Path) -> tuple[Object, ...]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


@functools.cache
def built(build: Build) -> tuple[Object, ...]:
    """All objects of a build."""
    base, *components = build
    if not components:
        return kustomize(KUBERNETES / base)
    with TemporaryDirectory() as place:
        own = {"resources": [base], "components": [f"components/{name}" for name in components]}
        relative = {key: [os.path.relpath(KUBERNETES / path, place) for path in paths] for key, paths in own.items()}
        Path(place, "kustomization.yaml").write_text(yaml.safe_dump({"namespace": "noria"} | relative))
        return kustomize(Path(place))


def of_kind(build: Build, kind: str) -> list[Object]:
    return [thing for thing in built(build) if thing["kind"] == kind]


def of_instance(things: Sequence[Object], instance: str) -> list[Object]:
    """The objects of one model."""
    return [thing for thing in things if thing["metadata"].get("labels", {}).get(INSTANCE) == instance]


def pod_templates(thing: Object) -> list[Object]:
    """The templates of pods with Noria that an object has, the first rank before the others."""
    spec = thing.get("spec", {})
    if thing["kind"] == "LeaderWorkerSet":
        return [spec["leaderWorkerTemplate"][name] for name in ("leaderTemplate", "workerTemplate")]
    if thing["kind"] == "Deployment" and spec["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == "noria":
        return [spec["template"]]
    return []


def pods(build: Build) -> list[Object]:
    return [template for thing in built(build) for template in pod_templates(thing)]


def selects(labels: dict[str, str], template: Object) -> bool:
    """Whether a selector finds the pods of a template."""
    return labels.items() <= template["metadata"]["labels"].items()


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
        values = serve.make_context("serve", args).params
    return values | {"port": Settings(port=values["port"]).address[1]}
