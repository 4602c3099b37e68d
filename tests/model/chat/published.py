"""The formats of published templates in `templates/`, what is special about each, and conversations for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]
TEMPLATES = Path(__file__).parent / "templates"
STYLE_OF: Mapping[str, str | None] = {
    "chatml": None,
    "command-r-plus.tool_use": None,
    "deepseek-r1-distill": None,
    "firefunction-v2": "functools",
    "gemma-2": None,
    "gemma-3": None,
    "granite-3": None,
    "hermes-2-pro.tool_use": "hermes",
    "llama-2": None,
    "llama-3.2": "llama-single",
    "mistral-7b-v0.3": None,  # the tokenizer here has no [TOOL_CALLS]
    "openchat-3.5": None,
    "phi-3-mini": None,
    "phi-3.5-mini": None,
    "qwen2.5": "hermes",
    "zephyr": None,
}
MERGED_SYSTEM = ("gemma-2", "phi-3-mini")
UNDEFINED_TOOLS = ("hermes-2-pro.tool_use", "command-r-plus.tool_use")
TEXT_ARGUMENTS = ("deepseek-r1-distill", "firefunction-v2")

USER, ANSWER = {"role": "user", "content": "How is it? "}, {"role": "assistant", "content": "Sunny."}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
CALLED = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "tool_call_id": "abcdefgh1"},
]


def source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()
