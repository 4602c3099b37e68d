"""What a client of Anthropic's API may send, and the chat request that it stands for."""

from itertools import groupby
from typing import Annotated, Literal

from pydantic import Field

from model.sampling_params import MAX_STOP_CHARS, MAX_STOPS
from service.errors import InvalidRequest
from service.harmless_fields import HARMLESS_CONVERSATION, HARMLESS_MESSAGES, HARMLESS_METADATA, HARMLESS_TEXT_BLOCK
from service.schemas import Body, ChatBody, Integer, Items, expect

Sentence = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class TextBlock(Body):
    harmless = HARMLESS_TEXT_BLOCK
    type: Literal["text"]
    text: str


Blocks = Annotated[
    str | Items[TextBlock],
    expect("a string or a list of blocks {'type': 'text', 'text': ...} (images, tools and thinking are not supported)"),
]


class Turn(Body):
    role: Literal["user", "assistant"]
    content: Blocks


class Metadata(Body):
    harmless = HARMLESS_METADATA


class ConversationBody(Body):
    """`POST /v1/messages/count_tokens`, and what it shares with `POST /v1/messages`."""

    harmless = HARMLESS_CONVERSATION
    model: str | None = None
    messages: Items[Turn]
    system: Blocks | None = None

    def check(self) -> None:
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")

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
    max_tokens: Annotated[Integer, Field(ge=1)]
    metadata: Metadata | None = None
    stop_sequences: Annotated[Items[Sentence], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Integer | None = None

    def check(self) -> None:
        super().check()
        if self.messages[-1].role == "assistant":
            message = "the last message must be the user's: to continue an assistant's message is not supported"
            raise InvalidRequest(message, param="messages")

    def as_chat(self) -> ChatBody:
        return ChatBody.model_validate(
            {
                "messages": self.turns(),
                "max_tokens": self.max_tokens,
                "stop": self.stop_sequences,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
            }
        )


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)
