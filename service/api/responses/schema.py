"""The request body of the Responses API, and the internal request made of it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from model.chat.reasoning import Effort
from model.errors import quoted
from model.sampling_params import RANGES
from service.api.prompt import Chat
from service.api.reasoning import ReasoningOptions
from service.api.responses.items import Item, as_messages
from service.api.responses.tools import CallingBody
from service.errors.errors import InvalidRequest
from service.schema.conversation import MAX_NAME
from service.schema.fields import MAX_ITEMS, MODEL, Body, Items, only, optional, ranged, unsupported
from service.schema.generation import MAX_SALT, MAX_USER, GenerationBody
from service.structured.constraint import ANY_OBJECT, Constraint, json_constraint

MAX_TOKENS = RANGES["max_tokens"][1]


def _as_items(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise PydanticCustomError("expected", "must be a string or an array")
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class Format(Body):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"] = Field(description="text, json_object or json_schema.")
    name: str | None = optional("The name of the schema. It has no effect.", max_length=MAX_NAME)
    description: str | None = optional("A description of the schema. It has no effect.")
    schema_: dict[str, Any] | None = optional("The JSON schema. Required with type `json_schema`.", alias="schema")
    strict: bool | None = optional("It has no effect: the schema is always enforced.")

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.schema_ is None and self.type == "json_schema":
            raise unsupported("schema", "schema is required with type json_schema")
        if self.schema_ is not None and self.type != "json_schema":
            raise unsupported("schema", f"schema is allowed only with type json_schema, got type {quoted(self.type)}")
        return self

    @property
    def constraint(self) -> Constraint | None:
        if self.type == "text":
            return None
        return json_constraint(ANY_OBJECT if self.schema_ is None else self.schema_, "text.format")


class TextConfig(Body):
    """Options of the text of the answer."""

    harmless = only(verbosity=("medium",))
    format: Format | None = optional("The format: text, any JSON object, or JSON that follows a schema. Default: text.")


class Reasoning(Body):
    """Options of the model's reasoning."""

    harmless = only(context=("auto",))
    effort: Effort | None = optional(
        "How long the model thinks: none, or minimal to max. Default: the model's own. A model without reasoning takes "
        "only none."
    )
    summary: Literal["auto", "concise", "detailed"] | None = optional(
        "It has no effect: the answer has the whole thought, and no summary."
    )
    generate_summary: Literal["auto", "concise", "detailed"] | None = optional("The old name of `summary`.")


class ResponsesBody(CallingBody):
    """The request body of `POST /v1/responses`. The server stores nothing: each request has the whole conversation."""

    harmless = only(
        background=(False,),
        context_management=(),
        conversation=(),
        include=([], ["reasoning.encrypted_content"]),  # nothing is encrypted
        max_tool_calls=(),
        metadata=({},),
        moderation=(),
        previous_response_id=(),
        prompt=(),
        prompt_cache_retention=("in_memory",),
        prompt_cache_options=({}, {"mode": "implicit"}),
        service_tier=("auto", "default"),
        store=(False,),
        stream_options=({}, {"include_obfuscation": False}),
        top_logprobs=(0,),
        truncation=("disabled",),
    )
    model: str | None = optional(MODEL)
    input: Annotated[Items[Item], BeforeValidator(_as_items, json_schema_input_type=str | list[Item])] = Field(
        max_length=MAX_ITEMS, description="The text of a user message, or all items of a conversation."
    )
    instructions: str | None = optional("A system message before all items.")
    max_output_tokens: int | None = optional(
        "The maximum number of generated tokens. Prompt and answer together must fit the context. "
        "Default: what the prompt leaves of the context.",
        ge=1,
        le=MAX_TOKENS,
    )
    client_metadata: dict[str, Any] | None = optional("Facts about the client. They have no effect.")
    reasoning: Reasoning | None = optional("Options of the model's reasoning.")
    prompt_cache_key: str | None = optional("It has no effect: all prompts share cached pages.", max_length=MAX_SALT)
    safety_identifier: str | None = optional("The end user. It takes precedence over `user`.", max_length=MAX_USER)
    stream: bool | None = optional("Send the answer as server-sent events while it is generated.")
    temperature: float | None = ranged("temperature")
    text: TextConfig | None = optional("Options of the text, its format among them.")
    top_p: float | None = ranged("top_p")
    user: str | None = optional("The end user. The log has a hash of it.", max_length=MAX_USER)

    @property
    def end_user(self) -> str | None:
        return self.safety_identifier or self.user

    def check(self) -> None:
        if not self.input:
            raise InvalidRequest("input must not be empty", param="input")
        self.calls  # noqa: B018 - it raises

    @property
    def format(self) -> Format:
        return (self.text and self.text.format) or Format(type="text")

    def chat(self) -> Chat:
        """What the body asks, as `Chat`. Raises InvalidRequest. Large schemas take time: not for the event loop."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages = as_messages(self.input)
        if not messages:
            raise InvalidRequest("input has no message, no call and no output", param="input")
        return Chat(
            system + messages,
            self.calls,
            constraint=self.format.constraint,
            fields=GenerationBody.model_construct(temperature=self.temperature, top_p=self.top_p),
            max_tokens=self.max_output_tokens,
            reasoning=ReasoningOptions.of_effort((self.reasoning or Reasoning()).effort, "reasoning.effort", hint=True),
            messages_field="input",
            max_tokens_field="max_output_tokens",
        )
