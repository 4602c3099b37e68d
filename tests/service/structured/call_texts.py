"""Two calls of each style as a model writes them, and what a reader finds in a text."""

from typing import Any

from service.generation.choice import Delta
from service.structured.call_reader import CallReader

ARGUMENTS = '{"city": "a}\\\\\\"{"}'


TEXTS = {
    "hermes": (
        f'Well <tool\n<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time.now", "arguments": {}}\n</tool_call>',
        "Well <tool\n",
    ),
    "llama": (
        f'{{"name": "weather", "parameters": {ARGUMENTS}}}; {{"name": "time.now", "parameters": {{}}}}',
        "",
    ),
    "mistral": (
        f'Well [TOOL[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}, "id": "abcdefgh1"}}, '
        '{"name": "time.now", "arguments": {}}]',
        "Well [TOOL",
    ),
    "mistral-v3": (
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ARGUMENTS}}}, {{"name": "time.now", "arguments": {{}}}}]',
        "",
    ),
    "mistral-v11": (
        f"Well[TOOL_CALLS]weather[CALL_ID]abcdefgh1[ARGS]{ARGUMENTS}[TOOL_CALLS]time.now[ARGS]{{}}",
        "Well",
    ),
    "mistral-args": (f"Well[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]time.now[ARGS]{{}}", "Well"),
}
TEXTS["llama-single"] = TEXTS["llama"]  # its grammar allows one call; the reader is the same


def gathered(reader: CallReader, *parts: str) -> tuple[str, list[dict[str, Any]]]:
    """The text and the calls of an answer that comes in these parts."""
    deltas = [*map(Delta, parts), Delta(finish="stop")]
    blocks = [step.block for delta in deltas for step in reader.feed(delta) if step.change == "end"]
    calls = [block for block in blocks if block.kind == "call"]
    assert [call.index for call in calls] == [*range(len(calls))]
    return "".join(block.text for block in blocks if block.kind == "text"), [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}} for call in calls
    ]
