"""What a client of Anthropic's API may send, and the chat request that it stands for."""

from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Field

from model.sampling_params import MAX_STOP_CHARS, MAX_STOPS, RANGES
from service.errors import InvalidRequest
from service.fields import Body, Items, expect, optional, ranged
from service.harmless_fields import (
    HARMLESS_CONVERSATION,
    HARMLESS_MESSAGES,
    HARMLESS_OUTPUT_CONFIG,
    HARMLESS_TEXT_BLOCK,
)
from service.schemas import MAX_USER, ChatBody

MAX_TOKENS = RANGES["max_tokens"][1]
Sentence = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class TextBlock(Body):
    harmless = HARMLESS_TEXT_BLOCK
    type: Literal["text"] = Field(description="Text is the only type.")
    text: str = Field(description="Blocks are joined without a space.")


Blocks = Annotated[
    str | Items[TextBlock],
    expect("a string or a list of blocks {'type': 'text', 'text': ...} (images, tools and thinking are not supported)"),
]


class Turn(Body):
    role: Literal["user", "assistant"] = Field(description="Turns of one role in a row are one.")
    content: Blocks = Field(description="A string, or a list of text blocks.")


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
    messages: Items[Turn] = Field(description="At least one; the answer continues a last one of the assistant's.")
    output_config: OutputConfig | None = optional("Only `format`.")
    system: Blocks | None = optional("A string, or a list of text blocks.")

    def check(self) -> None:
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")

    @property
    def continues(self) -> bool:
        return self.messages[-1].role == "assistant"

    def turns(self) -> list[dict[str, str]]:
        """The conversation as chat messages: turns of one role in a row are one, as Anthropic has it."""
        system = [{"role": "system", "content": _text(self.system)}] if self.system else []
        return system + [
            {"role": role, "content": "\n\n".join(_text(turn.content) for turn in turns)}
            for role, turns in groupby(self.messages, key=lambda turn: turn.role)
        ]


class MessagesBody(ConversationBody):
    """`POST /v1/messages`."""

    harmless = HARMLESS_MESSAGES
    max_tokens: int = Field(ge=1, le=MAX_TOKENS, description="Within the context, together with the prompt.")
    metadata: Metadata | None = optional("Only `user_id`.")
    stop_sequences: Items[Sentence] | None = optional("The text ends before any of them.", max_length=MAX_STOPS)
    stream: bool | None = optional("Server-sent events in place of one answer.")
    temperature: float | None = ranged("temperature", "0 is greedy. Default: `generation_config.json`'s, or 1.")
    top_p: float | None = ranged("top_p", "Keeps the likeliest tokens that reach this share; above 0. Default: 1.")
    top_k: int | None = ranged("top_k", "Keeps the k likeliest tokens; 0 and -1 keep all. Default: 0.")

    @property
    def end_user(self) -> str | None:
        return self.metadata.user_id if self.metadata else None

    def as_chat(self) -> ChatBody:
        return ChatBody.model_validate(
            {
                "messages": self.turns(),
                "continue_final_message": self.continues,
                "max_tokens": self.max_tokens,
                "stop": self.stop_sequences,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "response_format": self.output_config and self.output_config.as_chat(),
            }
        )


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)
