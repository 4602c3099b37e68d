"""What a cluster would say to the manifests, by published schemas."""

import functools
import json
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
