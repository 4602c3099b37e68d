"""`POST /v1/responses`: its body, the internal request made of it, and the route."""

from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, get_args

from fastapi import Request
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from model.chat.reasoning import Effort
from model.errors import quoted
from service.access.record import Policy
from service.api.answering import answer
from service.api.prompt import Chat, chat_request, of_chat
from service.api.reasoning import ReasoningOptions
from service.api.responses.answers import RequestEcho, ResponseAnswer
from service.api.responses.items import Item, as_messages
from service.api.responses.shape import ResponseShape
from service.api.responses.tools import CallingBody, functions_of
from service.api.routes import post
from service.errors.errors import InvalidRequest
from service.generation.request import ServedModel
from service.schema.conversation import MAX_NAME
from service.schema.fields import (
    MAX_ITEMS,
    Body,
    Items,
    ModelBody,
    Repeated,
    limits_of,
    only,
    optional,
    ranged,
    synonym,
    unsupported,
)
from service.schema.generation import (
    CHAT_TOKENS,
    MAX_SALT,
    ONE_TIER,
    GenerationBody,
    ObfuscationOptions,
    ServiceTier,
    StreamBody,
    UserBody,
)
from service.structured.call_reader import reader_of
from service.structured.constraint import ANY_OBJECT, Constraint, json_constraint

Included = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
LOGPROBS = "message.output_text.logprobs"
Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


def _as_items(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise PydanticCustomError("expected", "must be a string or an array")
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class Format(Body):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"] = Field(description="text, json_object or json_schema.")
    name: str | None = optional("The name of the schema. It has no effect.", max_length=MAX_NAME)
    description: str | None = optional("A description of the schema. It has no effect.")
    schema_: Repeated | None = optional("The JSON schema. Required with type `json_schema`.", alias="schema")
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
    noticed = only(verbosity=("low", "high"))
    format: Format | None = optional("The format: text, any JSON object, or JSON that follows a schema. Default: text.")


class Reasoning(Body):
    """Options of the model's reasoning."""

    harmless = only(context=("auto",), mode=("standard",))
    effort: Effort | None = optional(
        "How long the model thinks: none, or minimal to max. Default: the model's own. It has no effect on a model "
        "without reasoning."
    )
    summary: Literal["auto", "concise", "detailed"] | None = optional(
        "It has no effect: the answer has the whole thought, and no summary."
    )
    generate_summary: Literal["auto", "concise", "detailed"] | None = optional("The old name of `summary`.")


class PromptCacheOptions(Body):
    """Options of OpenAI's prompt cache. Here all prompts share cached pages, for as long as there is memory."""

    harmless = only(comparison_response_id=(), mode=("implicit", "explicit"), prewarm=(False,), ttl=("30m", "12h"))


class ResponsesBody(CallingBody, StreamBody, UserBody):
    """The request body of `POST /v1/responses`. The server stores nothing: each request has the whole conversation."""

    harmless = only(
        background=(False,),
        context_management=(),
        conversation=(),
        moderation=(),
        previous_response_id=(),
        prompt=(),
        prompt_cache_retention=("in_memory", "24h"),
        store=(False,),
        truncation=("disabled",),
    )
    noticed = only(**ModelBody.noticed, store=(True,), truncation=("auto",))
    synonyms = MappingProxyType({"random_seed": "seed"})
    input: Annotated[Items[Item], BeforeValidator(_as_items, json_schema_input_type=str | list[Item])] = Field(
        max_length=MAX_ITEMS, description="The text of a user message, or all items of a conversation."
    )
    include: Items[Included] | None = optional(
        f"What the answer has besides: `{LOGPROBS}`. The other values have no effect.",
        max_length=len(get_args(Included)),
    )
    instructions: str | None = optional("A system message before all items.")
    max_output_tokens: int | None = ranged("max_tokens", CHAT_TOKENS, least=1)
    client_metadata: dict[str, Any] | None = optional("Facts about the client. They have no effect.")
    max_tool_calls: int | None = optional(
        "The limit of calls of hosted tools, of which there are none.", ge=1, le=2**31 - 1
    )
    metadata: Metadata | None = optional(
        "Strings by name, which the answer repeats: at most 16, with names of 64 and values of 512 characters.",
        max_length=16,
    )
    reasoning: Reasoning | None = optional("Options of the model's reasoning.")
    service_tier: ServiceTier | None = optional(ONE_TIER)
    stream_options: ObfuscationOptions | None = optional("Options of the stream.")
    prompt_cache_options: PromptCacheOptions | None = optional("Options of OpenAI's prompt cache. They have no effect.")
    prompt_cache_key: str | None = optional("It has no effect: all prompts share cached pages.", max_length=MAX_SALT)
    seed: int | None = ranged("seed")
    random_seed: int | None = synonym("seed", "Mistral's", **limits_of("seed"))
    temperature: float | None = ranged("temperature")
    text: TextConfig | None = optional("Options of the text, its format among them.")
    top_logprobs: int | None = optional(
        f"The number of alternatives for each token. It needs `include` with `{LOGPROBS}`.", ge=0, le=20
    )
    top_p: float | None = ranged("top_p")

    def check(self) -> None:
        if not self.input:
            raise InvalidRequest("input must not be empty", param="input")
        if self.top_logprobs and self.n_logprobs is None:
            message = f"top_logprobs needs {LOGPROBS} in include, got {self.top_logprobs} without"
            raise InvalidRequest(message, param="top_logprobs")
        self.calls  # noqa: B018 - it raises

    @property
    def n_logprobs(self) -> int | None:
        """The number of alternatives for each token (None: no logprobs)."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

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
            fields=GenerationBody.model_construct(
                seed=self.agreed("seed"), temperature=self.temperature, top_p=self.top_p
            ),
            max_tokens=self.max_output_tokens,
            logprobs=self.n_logprobs,
            reasoning=ReasoningOptions.of_effort((self.reasoning or Reasoning()).effort, "reasoning.effort"),
            messages_field="input",
            max_tokens_field="max_output_tokens",
        )


def request_echo(body: ResponsesBody, served: ServedModel) -> RequestEcho:
    """The fields of the request that its answer repeats, with defaults in place. Unsupported ones have fixed values."""
    defaults, choice = served.defaults.sampling, body.tool_choice or "auto"
    return {
        "background": False,
        "error": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": body.reasoning.summary if body.reasoning else None,
        },
        "service_tier": "default",
        "store": False,
        "text": {"format": body.format.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": choice.model_dump(by_alias=True, exclude_none=True) if isinstance(choice, Body) else choice,
        "tools": [tool.model_dump() for tool in body.tools or () if functions_of(tool)],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
        "temperature": defaults.get("temperature", 1.0) if body.temperature is None else body.temperature,
        "top_p": defaults.get("top_p", 1.0) if body.top_p is None else body.top_p,
    }


@post(
    "/v1/responses",
    body=ResponsesBody,
    request={"input": "Say hello.", "max_output_tokens": 8},
    answer=ResponseAnswer,
    policy=Policy(operation="chat"),
)
async def responses(request: Request, body: ResponsesBody) -> Response:
    """Answer a conversation, in OpenAI's Responses API

    The server stores nothing: each request holds the whole conversation.
    """
    return await answer(
        request,
        body,
        of_chat(body.chat, chat_request),
        lambda served, name: ResponseShape(
            name,
            request_echo(body, served),
            reader_of(served, body.calls),
            body.custom_names,
            body.namespaces,
            None if body.n_logprobs is None else served.tokenizer,
        ),
    )
