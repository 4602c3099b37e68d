"""Two calls of each style as a model writes them, and what a reader finds in a text."""

from collections.abc import Sequence
from typing import Any

from service.structured.call_reader import CallDelta, Piece

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


def gathered(pieces: Sequence[Piece]) -> tuple[str, list[dict[str, Any]]]:
    """The text and the calls of a whole answer."""
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, CallDelta) and piece.name is not None:
            function = {"name": piece.name, "arguments": ""}
            calls.append({"id": piece.id, "type": "function", "function": function})
        elif isinstance(piece, CallDelta):
            calls[piece.index]["function"]["arguments"] += piece.arguments
    return "".join(piece for piece in pieces if isinstance(piece, str)), calls
