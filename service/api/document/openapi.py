"""The OpenAPI document: routes from the application, bodies from the schemas, answers from examples."""

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service import version
from service.api.anthropic.schema import ConversationBody, MessagesBody, Metadata, OutputConfig, OutputFormat, Turn
from service.api.anthropic.tools import TextBlock, ToolChoice, ToolOffer, ToolResult, ToolUse
from service.api.document.examples import EXAMPLES, Example
from service.api.embeddings.schema import EmbeddingsBody
from service.api.openai.schema import ChatBody, CompletionBody
from service.api.operations.health import OPEN_PATHS
from service.api.responses.items import CallItem, InputMessage, InputPart, OutputItem
from service.api.responses.schema import Format, ResponsesBody, TextConfig
from service.api.responses.tools import AllowedTools, FunctionChoice, FunctionTool
from service.api.tokens.schema import ApplyTemplateBody, DetokenizeBody, TokenizeBody
from service.http.errors import ANTHROPIC_PATH, ApiError, anthropic_body
from service.http.middleware import GENERATION_PATHS
from service.schema.conversation import Message, TextPart
from service.schema.fields import Body
from service.schema.generation import StreamOptions
from service.schema.structured_output import JsonSchema, ResponseFormat, StructuredOutputs
from service.schema.tools import Call, Called, Function, Tool

Json = dict[str, Any]

BODIES: Mapping[str, type[Body]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": ConversationBody,
    "/v1/embeddings": EmbeddingsBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/apply-template": ApplyTemplateBody,
}
PARTS: Mapping[str, type[Body]] = {
    "`messages`": Message,
    "a part of a message": TextPart,
    "`stream_options`": StreamOptions,
    "`tools`": Tool,
    "their `function`": Function,
    "`tool_calls`": Call,
    "a call's `function`": Called,
    "`response_format`": ResponseFormat,
    "its `json_schema`": JsonSchema,
    "`structured_outputs`": StructuredOutputs,
    "a message in `input`": InputMessage,
    "a part of it": InputPart,
    "a `function_call` in `input`": CallItem,
    "a `function_call_output` in `input`": OutputItem,
    "`tools` of /v1/responses": FunctionTool,
    "a function as `tool_choice` there": FunctionChoice,
    "`allowed_tools` there": AllowedTools,
    "`text`": TextConfig,
    "`text.format`": Format,
    "`messages` of /v1/messages": Turn,
    "a text block of theirs, and of `system`": TextBlock,
    "a `tool_use` block": ToolUse,
    "a `tool_result` block": ToolResult,
    "`tools` of /v1/messages": ToolOffer,
    "`tool_choice` of /v1/messages": ToolChoice,
    "`metadata` of /v1/messages": Metadata,
    "`output_config`": OutputConfig,
    "`output_config.format`": OutputFormat,
}
ERRORS = {
    400: "A field, its value or its limit is wrong; the message names all three.",
    401: "No key, or not one of the server's.",
    404: "The model is not served here.",
    413: "The body is too large.",
    415: "The content type is not application/json.",
    429: "The queue is full; try again after `retry-after` seconds.",
    500: "A failure of the server.",
    503: "Loading, restarting or draining; try again after `retry-after` seconds.",
}
HEADERS: Mapping[str, tuple[str, str]] = {
    "x-request-id": ("string", "The client's, or a new one."),
    "x-queue-ms": ("number", "The wait for the engine's first step, unless a stream began with a keep-alive."),
    "retry-after": ("integer", "Seconds."),
}
EVENT: Json = {
    "type": "object",
    "description": "One event of many, if `stream` is true.",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON, or [DONE]."}},
    "required": ["data"],
}
OF_BODIES = frozenset({400, 413, 415, 429})
REF = "#/components/schemas/{model}"


def document(app: FastAPI) -> Json:
    """The OpenAPI 3.1 document of the application's routes."""
    made = get_openapi(title="Noria", version=version(), routes=app.routes, summary="Mistral-family models over HTTP.")
    for path, operations in made["paths"].items():
        for operation in operations.values():
            operation |= _operation(path, operation, EXAMPLES[path])
    keys = {"bearer": {"type": "http", "scheme": "bearer"}}
    keys["x-api-key"] = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    made["components"] = {"schemas": _schemas(), "securitySchemes": keys}
    return made


def _operation(path: str, operation: Json, example: Example) -> Json:
    parameters = [item for item in operation.get("parameters", ()) if item["in"] == "path"]
    said: Json = {"responses": _responses(path, example), "parameters": parameters, "security": _security(path)}
    if path in BODIES:
        schema = {"$ref": REF.format(model=BODIES[path].__name__)}
        content = {"application/json": {"schema": schema, "example": example.request}}
        said["description"] = BODIES[path].__doc__
        said["requestBody"] = {"required": True, "content": content}
    return said


def _security(path: str) -> list[Json]:
    """A key is needed only where the server was started with one."""
    if path in OPEN_PATHS:
        return []
    return [{}, {"bearer": []}, *([{"x-api-key": []}] if path.startswith(ANTHROPIC_PATH) else [])]


def _responses(path: str, example: Example) -> Json:
    content: Json = {example.media_type: _described(example.answers)}
    if example.streams:
        content["text/event-stream"] = {"schema": EVENT}
    named = ("x-request-id", "x-queue-ms") if path in GENERATION_PATHS else ("x-request-id",)
    return {"200": {"description": "The answer.", "content": content, "headers": _headers(*named)}, **_errors(path)}


def _headers(*names: str) -> Json:
    return {name: {"description": HEADERS[name][1], "schema": {"type": HEADERS[name][0]}} for name in names}


def _errors(path: str) -> Json:
    if path in OPEN_PATHS:
        probe = {"application/json": _described(({"status": "loading"},))}
        return {"503": {"description": "Not now, and why.", "content": probe}} if path != "/live" else {}
    error = ApiError("what was wrong, the value and the limit")
    body = anthropic_body(error) if path.startswith(ANTHROPIC_PATH) else error.body()
    content = {"application/json": _described((body,))}
    statuses = [status for status in ERRORS if path in BODIES or status not in OF_BODIES]
    named = {429: ("x-request-id", "retry-after"), 503: ("x-request-id", "retry-after")}
    return {
        str(status): {
            "description": ERRORS[status],
            "content": content,
            "headers": _headers(*named.get(status, ("x-request-id",))),
        }
        for status in statuses
    }


def _described(examples: tuple[Json, ...]) -> Json:
    if not examples:
        return {"schema": {"type": "string"}}
    named = {f"example {number}": {"value": example} for number, example in enumerate(examples, 1)}
    return {"schema": schema_of(*examples), "examples": named}


KINDS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def schema_of(*examples: Any) -> Json:
    """JSON Schema of what looks like the examples: the keys of all; anything where they differ, or one is null."""
    if all(isinstance(example, dict) for example in examples):
        names = dict.fromkeys(name for example in examples for name in example)
        given = {name: [example[name] for example in examples if name in example] for name in names}
        required = [name for name, values in given.items() if len(values) == len(examples)]
        properties = {name: schema_of(*values) for name, values in given.items()}
        return {"type": "object", "properties": properties, "required": required}
    if all(isinstance(example, list) for example in examples):
        items = [item for example in examples for item in example]
        return {"type": "array", **({"items": schema_of(*items)} if items else {})}
    kinds = {KINDS.get(type(example)) for example in examples}
    return {"type": kinds.pop()} if len(kinds) == 1 and None not in kinds else {}


def _schemas() -> Json:
    """Of all bodies and what is in them: closed, with the fields that pass while they ask for nothing."""
    _, definitions = models_json_schema([(body, "validation") for body in BODIES.values()], ref_template=REF)
    schemas: Json = definitions["$defs"]
    for body in _kinds(Body):
        if (schema := schemas.get(body.__name__)) is not None:
            harmless = {name: {"enum": [*values, None]} for name, values in body.harmless.items()}
            schema |= {"properties": harmless | schema.get("properties", {}), "additionalProperties": False}
    return schemas


def _kinds(kind: type[Body]) -> Iterator[type[Body]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)
