"""`GET /openapi.json`: the OpenAPI document of what the routes declare."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
from pydantic import TypeAdapter
from starlette.responses import Response
from starlette.routing import compile_path
from typing_extensions import TypedDict

from service import version
from service.access.headers import HEADERS
from service.api.call import Call
from service.api.routes import FORM, Route, get
from service.errors.dialects import EVENTS
from service.errors.statuses import FINAL, STATUSES

Json = dict[str, Any]

RETRIABLE = frozenset({429, 503})
EVENT: Json = {
    "type": "object",
    "description": "One of the events that the server sends if `stream` is true.",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "A JSON object, or [DONE]."}},
    "required": ["data"],
}


def document(routes: Sequence[Route], prefix: str | None = None) -> Json:
    """Return the OpenAPI 3.1 document of the routes. `prefix`: clients find all of them below this path."""
    schemas, components = _schemas(routes)
    paths: Json = {}
    for route in routes:
        path, parameters = compile_path(route.path)[1:]
        operation = {"operationId": _id(route, path), **_operation(route, list(parameters), schemas)}
        paths.setdefault(path, {})[route.methods[0].lower()] = operation
    headers = {name for route in routes if (name := route.policy.dialect.key_header)}
    keys = {name: {"type": "apiKey", "in": "header", "name": name} for name in headers}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Noria", "summary": "Mistral-family models over HTTP.", "version": version()},
        **({"servers": [{"url": prefix}]} if prefix else {}),
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}, **keys},
        },
    }


def _schemas(routes: Sequence[Route]) -> tuple[dict[Any, Json], Json]:
    """Return the schema of each body and answer, and the components that they refer to."""
    kinds: dict[Any, None] = {}
    for route in routes:
        kinds |= dict.fromkeys((route.body, route.answer, route.policy.dialect.answer))
    named: Any = [(kind, "validation", TypeAdapter(kind)) for kind in kinds if kind is not None]
    made, definitions = TypeAdapter.json_schemas(named, ref_template="#/components/schemas/{model}")
    components = definitions["$defs"]
    for name in {route.body.__name__ for route in routes if route.body and route.body_type == FORM}:
        fields = components[name]["properties"].items()
        components[name]["properties"] = {field + "[]" * _is_list(schema): schema for field, schema in fields}
    return {kind: schema for (kind, _), schema in made.items()}, components


def _is_list(schema: Json) -> bool:
    """Return whether a field may be a list. In a form its name then ends with "[]", as in OpenAI's."""
    return schema.get("type") == "array" or any(isinstance(value, list) for value in schema.get("enum", ()))


def _id(route: Route, path: str) -> str:
    """Return the operation's id, as FastAPI forms it."""
    return re.sub(r"\W", "_", f"{route.name}{path}_{route.methods[0].lower()}")


def _operation(route: Route, parameters: list[str], schemas: Mapping[Any, Json]) -> Json:
    summary, _, description = route.text.partition("\n\n")
    operation: Json = {
        "summary": summary,
        **({"description": description} if description else {}),
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in parameters),
            *(
                {"name": name, "in": "query", "schema": {"type": "string", "enum": list(values)}}
                for name, values in route.queries.items()
            ),
        ],
        "responses": {**_answers(route, schemas), **_errors(route, schemas)},
        "security": _security(route),
    }
    if route.body is not None:
        content = {route.body_type: {"schema": schemas[route.body], "example": route.request}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _security(route: Route) -> list[Json]:
    """Return the ways to send a key. A client needs none if the server was started without."""
    if route.policy.open:
        return []
    header = route.policy.dialect.key_header
    return [{}, {"bearer": []}, *([{header: []}] if header else [])]


def _answers(route: Route, schemas: Mapping[Any, Json]) -> Json:
    content: Json = {route.media_type: {"schema": schemas[route.answer]}}
    if route.or_text:
        content["text/plain"] = {"schema": {"type": "string"}}
    if route.streams:
        media_type = route.policy.dialect.stream
        content[media_type] = {"schema": EVENT if media_type == EVENTS else schemas[route.answer]}
    kinds = ("model",) * route.policy.generates + ("body",) * (route.body is not None)
    answer = {"description": "The answer.", "content": content, "headers": _headers("any", *kinds)}
    return {str(status): answer for status in route.statuses}


def _errors(route: Route, schemas: Mapping[Any, Json]) -> Json:
    dialect = route.policy.dialect
    content = {"application/json": {"schema": schemas[dialect.answer]}}
    return {
        str(status): {
            "description": found.cause,
            "content": content,
            "headers": _headers(
                "any",
                "final" if status in FINAL else "retriable" if status in RETRIABLE else "",
                "full" * (status == 429),
            ),
        }
        for status, found in STATUSES.items()
        if _may_give(route, status)
    }


def _may_give(route: Route, status: int) -> bool:
    match STATUSES[status].routes:
        case "any":
            return True
        case "keyed":
            return not route.policy.open
        case "bodies":
            checked = route.body is not None or (status == 400 and route.queries)
            return bool(checked) or (status == 429 and route.endless)
    return status in route.refusals


def _headers(*of: str) -> Json:
    """Return the headers of these kinds."""
    found = {name: header for name, header in HEADERS.items() if header.of in of}
    return {name: {"description": header.text, "schema": {"type": header.type}} for name, header in found.items()}


class Document(TypedDict):
    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


@get("/openapi.json", answer=Document)
async def openapi(call: Call) -> Response:
    """Describe every route"""
    content = await asyncio.to_thread(_rendered, call.request.app.state.routes, call.state.settings.root_path)
    return Response(content, media_type="application/json")


@lru_cache(maxsize=1)
def _rendered(routes: tuple[Route, ...], prefix: str | None) -> bytes:
    return orjson.dumps(document(routes, prefix))
