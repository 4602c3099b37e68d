"""The manifests of deploy/kubernetes as kustomize builds them, the schemas of their objects, and a stand-in for a cluster."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import kubernetes_validate
import referencing
import yaml

KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
VERSION = "1.37"
OLDEST = "1.30"
"""The oldest version of Kubernetes that knows all that the manifests use, such as `sleep` in preStop."""
CRDS = {
    (crd["apiVersion"], crd["kind"]): crd for crd in yaml.safe_load(Path(__file__).with_name("crds.yaml").read_text())
}
PLURALS = {"NetworkPolicy": "networkpolicies"}
CLUSTER_WIDE = {"Namespace"}

Object = dict[str, Any]
Build = tuple[str, ...]
"""A folder to build, and the components to add."""
BUILDS: tuple[Build, ...] = (
    ("overlays/cpu",),
    ("overlays/gpu",),
    ("overlays/sharded",),
    ("overlays/cpu", "hpa"),
    ("overlays/gpu", "keda", "monitoring", "gateway"),
    ("overlays/sharded", "monitoring", "gateway"),
    ("kserve",),
)


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


def pod_templates(thing: Object) -> list[Object]:
    """The templates of pods with Noria that an object has, the first rank before the others."""
    spec = thing.get("spec", {})
    if thing["kind"] == "LeaderWorkerSet":
        return [spec["leaderWorkerTemplate"][name] for name in ("leaderTemplate", "workerTemplate")]
    if thing["kind"] == "Deployment" and thing["metadata"]["name"] == "noria":
        return [spec["template"]]
    return []


def pods(build: Build) -> list[Object]:
    return [template for thing in built(build) for template in pod_templates(thing)]


def strict(schema: Any) -> Any:
    """`schema` that refuses properties which it does not name, as an API server does with unknown fields."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return closed | {key: strict(value) for key, value in schema.items()}


@functools.cache
def _definitions() -> referencing.Registry[Any]:
    folder = Path(kubernetes_validate.__file__).parent / f"kubernetes-json-schema/v{VERSION}.0-local-strict"
    contents = json.loads((folder / "_definitions.json").read_text())
    return referencing.Resource.from_contents(contents) @ referencing.Registry()


def validate(thing: Object) -> None:
    """Raises jsonschema.ValidationError if an object is not what its schema says."""
    crd = CRDS.get((thing["apiVersion"], thing["kind"]))
    if crd is None:
        for version in (OLDEST, VERSION):
            kubernetes_validate.validate(thing, version, strict=True)
        return
    jsonschema.Draft202012Validator(strict(crd["spec"]), registry=_definitions()).validate(thing["spec"])


def _resource_lists(things: tuple[Object, ...]) -> dict[str, Object]:
    """Discovery of an API server with the kinds of these objects: path -> answer."""
    lists: dict[str, Object] = {}
    for version, kind in {(thing["apiVersion"], thing["kind"]) for thing in things}:
        plural = CRDS[version, kind]["plural"] if (version, kind) in CRDS else PLURALS.get(kind, kind.lower() + "s")
        found = lists.setdefault(f"/apis/{version}" if "/" in version else f"/api/{version}", {"resources": []})
        found |= {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version}
        entry = {"name": plural, "kind": kind, "namespaced": kind not in CLUSTER_WIDE, "verbs": ["create"]}
        found["resources"].append(entry)
    groups = [
        {"name": version.split("/")[0], "versions": [{"groupVersion": version, "version": version.split("/")[1]}]}
        for version in sorted(found["groupVersion"] for found in lists.values())
        if "/" in version
    ]
    lists["/api"] = {"kind": "APIVersions", "versions": ["v1"]}
    lists["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return lists


@contextmanager
def discovery(things: tuple[Object, ...]) -> Iterator[str]:
    """The URL of a server that only says which kinds there are: kubectl asks even for a client's dry run."""
    answers = _resource_lists(things)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path.partition("?")[0], {"kind": "Status", "code": 404})).encode()
            self.send_response(200 if self.path.partition("?")[0] in answers else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def dry_run(things: tuple[Object, ...], folder: Path) -> list[str]:
    """What kubectl would create: the names of the objects. Raises AssertionError if it refuses one."""
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(things))
    with discovery(things) as url:
        flags = [f"--server={url}", f"--cache-dir={folder}", "--kubeconfig=/dev/null", "--dry-run=client"]
        command = ["kubectl", "create", *flags, "--validate=false", "--output=name", f"--filename={path}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


HAS_KUBECTL = shutil.which("kubectl") is not None
