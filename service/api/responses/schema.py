"""What a client of the Responses API may send, and the chat request that it stands for."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from model.sampling_params import RANGES
from service.api.responses.items import Item, as_messages
from service.api.responses.tools import CallingBody
from service.http.errors import InvalidRequest
from service.schema.fields import MAX_ITEMS, Body, Items, optional, ranged, unsupported
from service.schema.generation import MAX_NAME, MAX_SALT, MAX_USER, ChatBody
from service.schema.harmless import HARMLESS_RESPONSES, HARMLESS_TEXT_CONFIG

MAX_TOKENS = RANGES["max_tokens"][1]


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class Format(Body):
    type: Literal["text", "json_object", "json_schema"] = Field(description="What the answer is.")
    name: str | None = optional("Of a schema; a comment.", max_length=MAX_NAME)
    description: str | None = optional("Of a schema; a comment.")
    schema_: dict[str, Any] | None = optional("Required with type `json_schema`.", alias="schema")
    strict: bool | None = optional("A schema is enforced with it or without.")

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.schema_ is None) == (self.type == "json_schema"):
            raise unsupported("schema", f"schema goes with type json_schema and only with it, got type {self.type}")
        return self

    def as_chat(self) -> dict[str, Any]:
        """As chat's `response_format`."""
        schema = {"json_schema": {"name": "answer", "schema": self.schema_}} if self.schema_ is not None else {}
        return {"type": self.type, **schema}


class TextConfig(Body):
    harmless = HARMLESS_TEXT_CONFIG
    format: Format | None = optional("Text, JSON, or JSON of a schema. Default: text.")


class ResponsesBody(CallingBody):
    """`POST /v1/responses`. Nothing is stored: the whole conversation comes with each request."""

    harmless = HARMLESS_RESPONSES
    model: str | None = optional("An id of `/v1/models`. Default: the served model.")
    input: Annotated[Items[Item], BeforeValidator(_as_items, json_schema_input_type=str | list[Item])] = Field(
        max_length=MAX_ITEMS, description="What a user says; or all items of a conversation."
    )
    instructions: str | None = optional("A system message before all others.")
    max_output_tokens: int | None = optional("Within the context, together with the prompt.", ge=1, le=MAX_TOKENS)
    prompt_cache_key: str | None = optional("Prompts share cached pages without it.", max_length=MAX_SALT)
    safety_identifier: str | None = optional("As `user`, and before it.", max_length=MAX_USER)
    stream: bool | None = optional("Server-sent events in place of one answer.")
    temperature: float | None = ranged("temperature")
    text: TextConfig | None = optional("The answer's form.")
    top_p: float | None = ranged("top_p")
    user: str | None = optional("Logged as a hash.", max_length=MAX_USER)

    @property
    def end_user(self) -> str | None:
        return self.safety_identifier or self.user

    def check(self) -> None:
        if not self.input:
            raise InvalidRequest("input must not be empty", param="input")

    @property
    def format(self) -> Format:
        return (self.text and self.text.format) or Format(type="text")

    def as_chat(self) -> ChatBody:
        """The chat request. Raises InvalidRequest for a choice among tools that are not there."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        chat = ChatBody.model_validate(
            {
                "messages": system + as_messages(self.input),
                "max_tokens": self.max_output_tokens,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "response_format": self.format.as_chat(),
                **self.calls_as_chat(),
            }
        )
        chat.check_tools()
        return chat
