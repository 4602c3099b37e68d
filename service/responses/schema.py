"""What a client of the Responses API may send, and the chat request that it stands for."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from service.errors import InvalidRequest
from service.harmless_fields import (
    HARMLESS_INPUT_ITEM,
    HARMLESS_INPUT_PART,
    HARMLESS_RESPONSES,
    HARMLESS_TEXT_CONFIG,
)
from service.schemas import Body, ChatBody, Integer, Items, expect


class InputPart(Body):
    """What a user wrote, or what an answer gave."""

    harmless = HARMLESS_INPUT_PART
    type: Literal["input_text", "output_text"]
    text: str


class InputMessage(Body):
    harmless = HARMLESS_INPUT_ITEM
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[
        str | Items[InputPart],
        expect("a string or a list of parts of type input_text or output_text (images and files are not supported)"),
    ]

    def plain(self) -> dict[str, str]:
        parts = self.content
        return {"role": self.role, "content": parts if isinstance(parts, str) else "".join(part.text for part in parts)}


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class TextFormat(Body):
    type: Literal["text"]


class TextConfig(Body):
    harmless = HARMLESS_TEXT_CONFIG
    format: TextFormat | None = None


class ResponsesBody(Body):
    """`POST /v1/responses`. Nothing is stored: the whole conversation comes with each request."""

    harmless = HARMLESS_RESPONSES
    model: str | None = None
    input: Annotated[Items[InputMessage], BeforeValidator(_as_items, json_schema_input_type=str | list[InputMessage])]
    instructions: str | None = None
    max_output_tokens: Annotated[Integer, Field(ge=1)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    text: TextConfig | None = None
    top_p: float | None = None

    def check(self) -> None:
        if not self.input:
            raise InvalidRequest("input must not be empty", param="input")

    def as_chat(self) -> ChatBody:
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return ChatBody.model_validate(
            {
                "messages": system + [message.plain() for message in self.input],
                "max_tokens": self.max_output_tokens,
                "temperature": self.temperature,
                "top_p": self.top_p,
            }
        )
