"""The field `context_management` of Anthropic's Messages API: it leaves out parts of messages, and reports them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field

from model.chat.reasoning import THOUGHT
from service.api.anthropic.answer_types import AppliedEdit
from service.api.media import Media
from service.api.prompt import Chat, Encoded, encode_chat
from service.errors.errors import ContextExceeded
from service.generation.served import ServedModel
from service.schema.conversation import contents
from service.schema.fields import Body, Items, Json, optional
from service.schema.tools import MAX_TOOLS, plain_call

MOST = 2**31 - 1
PLACEHOLDER = "[cleared]"
"""The content of a result that was left out."""


@dataclass(frozen=True)
class Draft:
    """A conversation. Its prompt is written when it is first used."""

    chat: Chat
    served: ServedModel
    media: Media

    @cached_property
    def prompt(self) -> Encoded:
        return encode_chat(self.chat, self.served, self.media)

    @cached_property
    def n_tokens(self) -> int:
        """Return the number of tokens of the prompt; for one that is too long to tokenize, the least that it can be."""
        try:
            return len(self.prompt[0])
        except ContextExceeded as error:
            return error.prompt

    def with_messages(self, messages: Sequence[Json]) -> "Draft":
        """Return the conversation with these messages in place of its own. They may have lost images."""
        chat = replace(self.chat, messages=messages)
        left = {id(part) for _, part in chat.media}
        kept = [at for at, (_, part) in enumerate(self.chat.media) if id(part) in left]
        return Draft(chat, self.served, self.media.only(kept))


class InputTokensLimit(Body):
    type: Literal["input_tokens"] = Field(description='"input_tokens".')
    value: int = Field(ge=0, le=MOST, description="The number of tokens.")


class ToolUses(Body):
    type: Literal["tool_uses"] = Field(description='"tool_uses".')
    value: int = Field(ge=0, le=MOST, description="The number of tool calls.")


class ClearToolUses(Body):
    """Replace old results of tools once the prompt is long."""

    type: Literal["clear_tool_uses_20250919"] = Field(description='"clear_tool_uses_20250919".')
    trigger: InputTokensLimit | ToolUses | None = optional(
        "Results are cleared if the prompt has more tokens, or the messages have more calls, than this. Default: "
        "100000 tokens."
    )
    keep: ToolUses | None = optional("The number of the last calls whose results stay. Default: 3.")
    clear_at_least: InputTokensLimit | None = optional("Nothing is cleared if that saves fewer tokens. Default: 1.")
    exclude_tools: Items[str] | None = optional("The names of tools whose results stay.", max_length=MAX_TOOLS)
    clear_tool_inputs: bool | Items[str] | None = optional(
        "true: the arguments of such a call are left out too. A list: those of these tools. Default: false."
    )

    @property
    def least(self) -> int:
        return max(1, self.clear_at_least.value if self.clear_at_least else 1)

    def clear(self, draft: Draft) -> tuple[Sequence[Json], int]:
        """Return the messages without old results, and the number of results that were left out."""
        messages = draft.chat.messages
        calls = [(call["id"], call["function"]["name"]) for each in messages for call in each.get("tool_calls", ())]
        trigger = self.trigger or InputTokensLimit(type="input_tokens", value=100_000)
        if (len(calls) if isinstance(trigger, ToolUses) else draft.n_tokens) <= trigger.value:
            return messages, 0
        n_old = max(0, len(calls) - (self.keep.value if self.keep else 3))
        old = {call_id for call_id, name in calls[:n_old] if name not in (self.exclude_tools or ())}
        return [self._without(message, old) for message in messages], len(old)

    def _without(self, message: Json, old: Collection[str]) -> Json:
        if message.get("tool_call_id") in old:
            return {"role": message["role"], "tool_call_id": message["tool_call_id"], **contents([PLACEHOLDER])}
        if self.clear_tool_inputs and "tool_calls" in message:
            calls = message["tool_calls"]
            return message | {"tool_calls": [self._bare(call) if call["id"] in old else call for call in calls]}
        return message

    def _bare(self, call: Json) -> Json:
        """Return the call, without its arguments if those of its tool are left out."""
        name, tools = call["function"]["name"], self.clear_tool_inputs
        return call if isinstance(tools, list) and name not in tools else plain_call(call["id"], name, {})

    def applied(self, cleared: int, n_tokens: int) -> AppliedEdit:
        return {"type": self.type, "cleared_tool_uses": cleared, "cleared_input_tokens": n_tokens}


class KeepAll(Body):
    type: Literal["all"] = Field(description='"all".')


class KeepTurns(Body):
    type: Literal["thinking_turns"] = Field(description='"thinking_turns".')
    value: int = Field(ge=1, le=MOST, description="The number of the last turns with thoughts that keep them.")


class ClearThinking(Body):
    """Leave out thoughts of earlier turns. A turn is all that the assistant says between two user messages with text: a
    loop of calls and results is one turn.
    """

    least: ClassVar = 0
    type: Literal["clear_thinking_20251015"] = Field(description='"clear_thinking_20251015".')
    keep: Literal["all"] | KeepAll | KeepTurns | None = optional(
        "Which thoughts stay. Default: those of the last turn that has any."
    )

    def clear(self, draft: Draft) -> tuple[Sequence[Json], int]:
        """Return the messages without the thoughts that do not stay, and the number of turns that lose them."""
        if self.keep == "all" or isinstance(self.keep, KeepAll):
            return draft.chat.messages, 0
        n_last = self.keep.value if isinstance(self.keep, KeepTurns) else 1
        left: list[Json] = []
        n_turns, thinks = 0, False  # the later turns with a thought, and whether this one has any
        for message in reversed(draft.chat.messages):
            if message["role"] == "user":
                n_turns, thinks = n_turns + thinks, False
            thinks = thinks or bool(message.get(THOUGHT))
            without = {key: value for key, value in message.items() if key != THOUGHT}
            left.append(message if n_turns < n_last else without)
        return left[::-1], max(0, n_turns + thinks - n_last)

    def applied(self, cleared: int, n_tokens: int) -> AppliedEdit:
        return {"type": self.type, "cleared_thinking_turns": cleared, "cleared_input_tokens": n_tokens}


class ContextManagement(Body):
    """Changes to earlier messages."""

    edits: Items[ClearToolUses | ClearThinking] | None = optional("The changes, in their order.", max_length=2)


def edited(management: ContextManagement | None, draft: Draft) -> tuple[Draft, list[AppliedEdit]]:
    """Return the conversation after the edits, and the report of those that left out something."""
    applied: list[AppliedEdit] = []
    for edit in (management and management.edits) or ():
        messages, cleared = edit.clear(draft)
        if not cleared:
            continue
        smaller = draft.with_messages(messages)
        n_tokens = max(0, draft.n_tokens - smaller.n_tokens)
        if n_tokens >= edit.least:
            applied.append(edit.applied(cleared, n_tokens))
            draft = smaller
    return draft, applied
