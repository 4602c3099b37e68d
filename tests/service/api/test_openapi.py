"""The OpenAPI document holds every route, its bodies are the schemas, its examples are what routes take and answer."""

from typing import Any

import pytest
from fastapi.routing import APIRoute

from service.api.document.examples import EXAMPLES
from service.api.document.openapi import BODIES, document, schema_of
from service.app import ROUTERS
from tests.service.live import Live


@pytest.fixture(scope="module")
def described(live: Live) -> dict[str, Any]:
    return live.http.get("/openapi.json").json()


def test_every_route_is_described(live: Live, described: dict[str, Any]) -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    shown = {route.path_format for route in routes if route.include_in_schema}
    assert shown == set(described["paths"]) == set(EXAMPLES)
    operations = [item for path in described["paths"].values() for item in path.values()]
    assert all(operation["summary"] and "200" in operation["responses"] for operation in operations)
    assert described == document(live.server._app)


@pytest.mark.parametrize("path", BODIES)
def test_examples_of_requests_are_answered(live: Live, path: str) -> None:
    response = live.post(path, EXAMPLES[path].request)
    fake_tokens_only = path == "/detokenize"
    assert response.status_code == (400 if fake_tokens_only else 200), response.text
    if not fake_tokens_only:
        check(response.json(), schema_of(*EXAMPLES[path].answers))


def check(value: Any, schema: dict[str, Any]) -> None:
    """A validator of the few words that `schema_of` uses."""
    kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
    kinds["number"] = int | float
    assert isinstance(value, kinds.get(schema.get("type", ""), object)), (value, schema)
    for name in schema.get("required", ()):
        check(value[name], schema["properties"][name])
    for item in value if "items" in schema else ():
        check(item, schema["items"])


def test_references_lead_somewhere(described: dict[str, Any]) -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                assert node["$ref"].removeprefix("#/components/schemas/") in described["components"]["schemas"]
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(described)


def test_a_schema_of_an_example() -> None:
    schema = schema_of(
        {"a": 1, "b": [0.5, 1.5], "c": None, "d": []}, {"a": 2, "b": [], "c": "x", "d": [], "e": [1, "x"]}
    )
    assert schema["required"] == ["a", "b", "c", "d"]
    assert schema["properties"] == {
        "a": {"type": "integer"},
        "b": {"type": "array", "items": {"type": "number"}},
        "c": {},
        "d": {"type": "array"},
        "e": {"type": "array", "items": {}},
    }
