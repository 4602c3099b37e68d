"""What a client of Anthropic's API may send, and the chat request that it stands for."""

from itertools import groupby
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from model.sampling_params import MAX_STOP_CHARS, MAX_STOPS, RANGES
from service.api.anthropic.tools import TextBlock, Texts, ToolChoice, ToolOffer, ToolResult, ToolUse, text_of
from service.http.errors import InvalidRequest
from service.schema.fields import MAX_ITEMS, Body, Items, expect, optional, ranged, unsupported
from service.schema.generation import MAX_USER, ChatBody
from service.schema.harmless import HARMLESS_CONVERSATION, HARMLESS_MESSAGES, HARMLESS_OUTPUT_CONFIG
from service.schema.tools import MAX_TOOLS

MAX_TOKENS = RANGES["max_tokens"][1]
Sentence = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


Blocks = Annotated[
    str | Annotated[Items[TextBlock | ToolUse | ToolResult], Field(max_length=MAX_ITEMS)],
    expect(
        f"a string or a list of at most {MAX_ITEMS} blocks of type text, tool_use or tool_result (images and "
        "thinking are not supported)"
    ),
]
OF_ROLES = {"user": ToolUse, "assistant": ToolResult}
"""Blocks that the other role has."""


class Turn(Body):
    role: Literal["user", "assistant"] = Field(description="Turns of one role in a row are one.")
    content: Blocks = Field(
        description="A string, or a list of blocks: text, `tool_use` (assistant), `tool_result` (user)."
    )

    @model_validator(mode="after")
    def _check_blocks(self) -> Self:
        for block in self.blocks:
            if isinstance(block, OF_ROLES[self.role]):
                raise unsupported("content", f"a block of type {block.type} is not for a message of role {self.role}")
        return self

    @property
    def blocks(self) -> list[TextBlock | ToolUse | ToolResult]:
        return [] if isinstance(self.content, str) else self.content


class Metadata(Body):
    user_id: str | None = optional("Logged as a hash.", max_length=MAX_USER)


class OutputFormat(Body):
    type: Literal["json_schema"] = Field(description="JSON of a schema is the only type.")
    schema_: dict[str, Any] = Field(alias="schema", description="What the answer must be.")


class OutputConfig(Body):
    harmless = HARMLESS_OUTPUT_CONFIG
    format: OutputFormat | None = optional("JSON of a schema. Default: text.")

    def as_chat(self) -> dict[str, Any] | None:
        """As chat's `response_format`."""
        if self.format is None:
            return None
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.format.schema_}}


class ConversationBody(Body):
    """`POST /v1/messages/count_tokens`, and what it shares with `POST /v1/messages`."""

    harmless = HARMLESS_CONVERSATION
    model: str | None = optional("An id of `/v1/models`. Default: the served model.")
    messages: Items[Turn] = Field(
        max_length=MAX_ITEMS, description="At least one; the answer continues a last one of the assistant's."
    )
    output_config: OutputConfig | None = optional("Only `format`.")
    system: Texts | None = optional("A string, or a list of text blocks.")
    tools: Items[ToolOffer] | None = optional("What the model may call.", max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = optional("Default: auto with tools, else none.")

    def check(self) -> None:
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and (self.tool_choice is None or self.tool_choice.type != "none")

    def as_chat(self, **others: Any) -> ChatBody:
        """The chat request. Raises InvalidRequest for a choice among tools that are not there."""
        system = [{"role": "system", "content": text_of(self.system)}] if self.system else []
        groups = groupby(self.messages, key=lambda turn: turn.role)
        chat = ChatBody.model_validate(
            {
                "messages": [*system, *(message for role, turns in groups for message in _as_chat(role, [*turns]))],
                "continue_final_message": self.messages[-1].role == "assistant",
                "tools": [tool.as_chat() for tool in self.tools or ()],
                **(self.tool_choice.as_chat() if self.tool_choice else {}),
                "response_format": self.output_config and self.output_config.as_chat(),
                **others,
            }
        )
        chat.check_tools()
        chat.check_continuation(chat.messages)
        return chat


class MessagesBody(ConversationBody):
    """`POST /v1/messages`."""

    harmless = HARMLESS_MESSAGES
    max_tokens: int = Field(ge=1, le=MAX_TOKENS, description="Within the context, together with the prompt.")
    metadata: Metadata | None = optional("Only `user_id`.")
    stop_sequences: Items[Sentence] | None = optional("The text ends before any of them.", max_length=MAX_STOPS)
    stream: bool | None = optional("Server-sent events in place of one answer.")
    temperature: float | None = ranged("temperature")
    top_p: float | None = ranged("top_p")
    top_k: int | None = ranged("top_k")

    @property
    def end_user(self) -> str | None:
        return self.metadata.user_id if self.metadata else None

    def as_chat(self, **others: Any) -> ChatBody:
        return super().as_chat(
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            **others,
        )


def _as_chat(role: str, turns: list[Turn]) -> list[dict[str, Any]]:
    """Turns of one role in a row as chat messages: results of tools, then one message with texts and calls."""
    blocks = [block for turn in turns for block in turn.blocks]
    results = [block.as_chat() for block in blocks if isinstance(block, ToolResult)]
    calls = [block.as_chat() for block in blocks if isinstance(block, ToolUse)]
    texts = [text for turn in turns if (text := text_of(turn.content))]
    if results and not texts:
        return results
    return [*results, {"role": role, "content": "\n\n".join(texts), "tool_calls": calls}]
