"""Published chat templates: what is special about each, and conversations for them.

The originals come in the package trl, byte for byte as the models' makers ship them. Nothing imports that package. The
files in `templates/` have constructs that no original has.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

Json = dict[str, Any]
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Format:
    """What a template has, and how it differs from those that take messages and tools as they are.

    `style`: of calls that Noria reads. `reasoning`: its style. `calls`: the template writes calls and their results.
    The other fields are those of `Needs`: what Noria must do, and what transformers leaves to its caller.
    """

    style: str | None = None
    reasoning: str | None = None
    calls: bool = False
    merged_system: bool = False
    last_user_system: bool = False
    text_arguments: bool = False
    undefined_tools: bool = False
    parts: bool = False
    efforts: tuple[str, ...] = ()


OWN: Mapping[str, Format] = {
    "chatml": Format(),
    "command-r-plus.tool_use": Format(calls=True, undefined_tools=True),
    "granite-3": Format(calls=True),
    "hermes-2-pro.tool_use": Format("hermes", calls=True, undefined_tools=True),
    "llama-2": Format(),
    "mistral-7b-v0.1": Format(merged_system=True),
    "mistral-7b-v0.3": Format(calls=True, last_user_system=True),  # the tokenizer here has no [TOOL_CALLS]
    "phi-3-mini": Format(merged_system=True),
    "zephyr": Format(),
}
ORIGINALS: Mapping[str, Format] = {
    "cohere": Format(),
    "cohere2": Format(),
    "deepseek_r1_distill": Format(reasoning="tags"),  # it leaves out the calls of a message with a content
    "deepseekv3": Format(reasoning="tags", calls=True, text_arguments=True),
    "gemma": Format(merged_system=True),
    "gemma3": Format(),
    "gemma4": Format(calls=True),  # thoughts in channels, which Noria does not read
    "glm4moe": Format(reasoning="tags", calls=True),
    "gptoss": Format(calls=True),  # thoughts in channels
    "idefics3": Format(parts=True),
    "lfm2": Format(),  # results of calls, but no calls
    "lfm2_2_5": Format(reasoning="tags", calls=True),
    "lfm2_v2": Format(calls=True),
    "llama3": Format(),
    "llama3_1": Format("llama-single", calls=True),
    "llama3_2": Format("llama-single", calls=True),
    "llava_next": Format(parts=True),
    "nemotron_3_nano": Format(reasoning="tags", calls=True),
    "phi3": Format(),
    "phi3_5": Format(),
    "qwen2_5": Format("hermes", calls=True),
    "qwen2_5_vl": Format(),
    "qwen3": Format("hermes", "tags", calls=True),
    "qwen3_5_think": Format(reasoning="tags", calls=True),
    "qwen3_8": Format(reasoning="tags", calls=True, efforts=("low", "medium", "xhigh")),
    "qwen3_instruct_2507": Format("hermes", calls=True),
    "smolvlm": Format(parts=True),
}
FORMATS: Mapping[str, Format] = {**OWN, **ORIGINALS}

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
    folder = TEMPLATES if name in OWN else originals()
    return (folder / f"{name}.jinja").read_text()


def originals() -> Path:
    """The folder of the package with the original templates."""
    found = find_spec("trl")
    assert found, "the package trl is missing: run scripts/setup dev"
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "chat_templates"


def theirs(oracle: PreTrainedTokenizerBase, name: str, messages: Sequence[Json], **values: Any) -> list[int]:
    """The oracle's ids for messages and variables as the template takes them."""
    if FORMATS[name].undefined_tools and not values.get("tools"):
        values["tools"] = []
    found = oracle.apply_chat_template(
        adapted(name, messages), chat_template=source(name), add_generation_prompt=True, return_dict=True, **values
    )
    ids: list[int] = found["input_ids"]
    return ids


def adapted(name: str, messages: Sequence[Json]) -> list[Json]:
    """The messages as the template takes them."""
    known = FORMATS[name]
    if messages[0]["role"] == "system" and known.merged_system:
        messages = with_system(messages, 1)
    if messages[0]["role"] == "system" and known.last_user_system and messages[-1]["role"] != "user":
        messages = with_system(messages, max(n for n, message in enumerate(messages) if message["role"] == "user"))
    if known.text_arguments:
        text = json.dumps(CALL["function"]["arguments"], ensure_ascii=False)  # type: ignore[index]
        call = {**CALL, "function": {"name": "weather", "arguments": text}}
        messages = [{**message, "tool_calls": [call]} if "tool_calls" in message else message for message in messages]
    if known.parts:
        messages = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
    return [*messages]


def with_system(messages: Sequence[Json], index: int) -> list[Json]:
    """The messages with the text of the first, a system message, at the beginning of another."""
    system, *others = messages
    others[index - 1] = {**others[index - 1], "content": f"{system['content']}\n\n{others[index - 1]['content']}"}
    return others
