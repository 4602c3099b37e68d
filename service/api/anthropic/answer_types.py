"""Answers of Anthropic's API, as types."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from service.generation.finish import FINISHES
from service.generation.usage import Timings
from service.receipts.receipt import Signed

STOP_REASONS = {row.name: row.anthropic for row in FINISHES.values() if row.anthropic}
StopReason = Annotated[str | None, WithJsonSchema({"enum": [*STOP_REASONS.values(), "stop_sequence"]})]
"""It is None only while a stream begins."""


class TextContent(TypedDict):
    type: Literal["text"]
    text: str


class ThinkingContent(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseContent(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Content = ThinkingContent | TextContent | ToolUseContent


class ClearedToolUses(TypedDict):
    type: Literal["clear_tool_uses_20250919"]
    cleared_tool_uses: int
    cleared_input_tokens: int


class ClearedThinking(TypedDict):
    type: Literal["clear_thinking_20251015"]
    cleared_thinking_turns: int
    cleared_input_tokens: int


AppliedEdit = ClearedToolUses | ClearedThinking


class AppliedEdits(TypedDict):
    applied_edits: Sequence[AppliedEdit]


class Reported(TypedDict):
    """The answer to the field `context_management`, if the request has it."""

    context_management: NotRequired[AppliedEdits]


class OriginalTokens(TypedDict):
    original_input_tokens: int


class InputTokens(TypedDict):
    input_tokens: int


class CountedTokens(InputTokens):
    """The number of tokens of a prompt. `context_management` answers the field of the request."""

    context_management: NotRequired[OriginalTokens]


class MessageUsage(InputTokens):
    """`input_tokens` leaves out the tokens that were read from the cache."""

    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Ending(TypedDict):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageState(Ending, Reported):
    """A message as the first event has it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    usage: MessageUsage


class MessageAnswer(MessageState, Signed):
    """The answer of `POST /v1/messages`."""

    timings: Timings
