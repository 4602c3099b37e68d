"""Changes to a request on its way: agents' prompts are too long and their tools too many for a small model.

The three dialects differ in where a tool keeps its schema and in how a call is forced.
"""

from collections.abc import Iterator
from typing import Any

from proxy import Body, Edit

TEXTS = {"system", "instructions", "text", "content", "output"}
"""Fields that hold text for the model."""
RESULTS = {"tool_result", "function_call_output", "custom_tool_call_output"}
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def cut(value: Any, size: int, key: str = "") -> Any:
    """The same with every text for the model cut to `size` characters."""
    if isinstance(value, dict):
        return {name: cut(item, size, name) for name, item in value.items()}
    if isinstance(value, list):
        return [cut(item, size, key) for item in value]
    return value[:size] if isinstance(value, str) and key in TEXTS else value


def parts(body: Body) -> Iterator[dict[str, Any]]:
    """Messages and the blocks in them."""
    for message in [*body.get("messages", []), *_items(body.get("input"))]:
        yield message
        yield from _items(message.get("content"))


def _items(content: Any) -> list[dict[str, Any]]:
    return [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []


def has_result(body: Body) -> bool:
    """Whether the client has run a tool."""
    return any(part.get("role") == "tool" or part.get("type") in RESULTS for part in parts(body))


def is_generation(path: str) -> bool:
    return path.endswith(("/messages", "/responses", "/chat/completions"))


def name_of(tool: dict[str, Any]) -> str:
    return tool.get("function", tool).get("name", "")


def exact(arguments: dict[str, Any]) -> dict[str, Any]:
    """The schema that allows these arguments only."""
    properties = {name: {"const": value} for name, value in arguments.items()}
    return {"type": "object", "properties": properties, "required": [*arguments], "additionalProperties": False}


def narrowed(path: str, tool: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The client's tool with a schema that allows these arguments only."""
    if "function" in tool:
        return {**tool, "function": {**narrowed("", tool["function"], arguments)}}
    field = "input_schema" if path.endswith("/messages") else "parameters"
    return {**tool, "description": "A tool.", field: exact(arguments)}


def choice(path: str, name: str) -> dict[str, Any]:
    """How a dialect forces a call."""
    if path.endswith("/messages"):
        return {"type": "tool", "name": name, "disable_parallel_tool_use": True}
    if path.endswith("/responses"):
        return {"type": "function", "name": name}
    return {"type": "function", "function": {"name": name}}


def short(size: int = 300, tokens: int = 32) -> Edit:
    """Shortens a prompt, leaves the tools out and bounds the answer."""

    def edit(path: str, body: Body) -> Body:
        if not is_generation(path):
            return body
        body = {**cut(body, size), "temperature": 0}
        for field in LIMITS:
            if field in body:
                body[field] = min(body[field], tokens)
        if not set(LIMITS) & set(body):
            body["max_output_tokens" if path.endswith("/responses") else "max_tokens"] = tokens
        for field in ("tools", "tool_choice", "parallel_tool_calls"):
            body.pop(field, None)
        return body

    return edit


def answering(text: str, size: int = 300) -> Edit:
    """Shortens a prompt for the Messages API and makes the model end its answer itself: after this text, as JSON."""
    shorten = short(size)

    def edit(path: str, body: Body) -> Body:
        if not is_generation(path):
            return body
        form = {"type": "json_schema", "schema": {"type": "string", "const": text}}
        output = {**body.get("output_config", {}), "format": form}
        return {**shorten(path, body), "max_tokens": body["max_tokens"], "output_config": output}

    return edit


def calling(tool: str, size: int = 300, tokens: int = 200, **arguments: Any) -> Edit:
    """Shortens a prompt and makes the model call `tool` with these arguments, once; after the result it answers."""
    shorten = short(size, tokens)

    def edit(path: str, body: Body) -> Body:
        tools = [narrowed(path, each, arguments) for each in body.get("tools", []) if name_of(each) == tool]
        body = shorten(path, body)
        if not tools:
            return body
        none = {"type": "none"} if path.endswith("/messages") else "none"
        return {**body, "tools": tools, "tool_choice": none if has_result(body) else choice(path, tool)}

    return edit
