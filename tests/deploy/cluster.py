"""What a cluster would say to the manifests: published schemas, and a server that answers kubectl's discovery."""

import functools
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import referencing
import yaml

from tests.deploy.manifests import Object

VERSION = "1.37"
OLDEST = "1.30"
"""The oldest version of Kubernetes that knows all that the manifests use, such as `sleep` in preStop."""
CRDS = {
    (crd["apiVersion"], crd["kind"]): crd for crd in yaml.safe_load(Path(__file__).with_name("crds.yaml").read_text())
}
PLURALS = {"NetworkPolicy": "networkpolicies"}
CLUSTER_WIDE = {"Namespace"}


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
    _validate(json.dumps(thing))


@functools.cache  # builds share most objects
def _validate(text: str) -> None:
    thing = json.loads(text)
    crd = CRDS.get((thing["apiVersion"], thing["kind"]))
    if crd is not None:
        jsonschema.Draft202012Validator(strict(crd["spec"]), registry=_definitions()).validate(thing["spec"])
        return
    for version in (OLDEST, VERSION):
        kubernetes_validate.validate(thing, version, strict=True)


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
