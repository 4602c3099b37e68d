"""Changes to a request on its way: agents' prompts are too long and their tools too many for a small model.

The three dialects differ in where a tool keeps its schema and in how a call is forced.
"""

from collections.abc import Iterator
from typing import Any

from tests.agents.proxy import Body, Edit

TEXTS = {"system", "instructions", "text", "content", "output"}
"""Fields that hold text for the model."""
RESULTS = {"tool_result", "function_call_output", "custom_tool_call_output"}
TOOLS = {"tools", "tool_choice", "parallel_tool_calls"}
SIZE = 300
"""Characters that are left of a text."""
ANSWER = "one, two, three"
SAID = f'"{ANSWER}"'
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


def ending(path: str, body: Body) -> Body:
    """The request whose answer is `ANSWER` as JSON and ends there: no client asks for more."""
    schema = {"type": "string", "const": ANSWER}
    if path.endswith("/messages"):
        form = {"type": "json_schema", "schema": schema}
        return {**body, "output_config": {**body.get("output_config", {}), "format": form}}
    named = {"name": "answer", "schema": schema}
    if path.endswith("/responses"):
        return {**body, "text": {"format": {"type": "json_schema", **named}}}
    return {**body, "response_format": {"type": "json_schema", "json_schema": named}}


def shortened(path: str, body: Body, tokens: int | None) -> Body:
    """The request without tools, with short texts and an answer of at most `tokens`."""
    left = {name: value for name, value in body.items() if name not in TOOLS}
    limits = {name: min(body[name], tokens) for name in LIMITS if name in body and tokens}
    return {**cut(left, SIZE), "temperature": 0, **limits}


def answering(tokens: int | None = 200) -> Edit:
    """Makes the model answer `SAID` to a short prompt. Without `tokens` the client's bound of the answer stays."""
    return lambda path, body: ending(path, shortened(path, body, tokens)) if is_generation(path) else body


def calling(tool: str, **arguments: Any) -> Edit:
    """Makes the model call `tool` with these arguments, once, and answer `SAID` after the result."""

    def edit(path: str, body: Body) -> Body:
        if not is_generation(path):
            return body
        tools = [narrowed(path, each, arguments) for each in body.get("tools", []) if name_of(each) == tool]
        if not tools or has_result(body):
            return ending(path, shortened(path, body, 200))
        return {**shortened(path, body, 200), "tools": tools, "tool_choice": choice(path, tool)}

    return edit
