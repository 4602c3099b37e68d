"""The bodies of requests to `/v1/responses`, and the conversations in them."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from model.chat.reasoning import Effort
from model.errors import quoted
from service.api.prompt import Chat
from service.api.reasoning import ReasoningOptions
from service.api.responses.items import AnyItem, Item, as_messages
from service.api.responses.tools import CallingBody
from service.errors.errors import InvalidRequest
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
    ObfuscationOptions,
    PromptCacheOptions,
    ServiceTier,
    StreamBody,
    UserBody,
)
from service.schema.options import Names, Options, given
from service.structured.constraint import Constraint, object_constraint

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
        return object_constraint(self.schema_, "text.format")


class TextConfig(Body):
    """Options of the text of the answer."""

    harmless = only(verbosity=("medium",))
    noticed = only(verbosity=("low", "high"))
    format: Format | None = optional("The format: text, any JSON object, or JSON that follows a schema. Default: text.")


class ReasoningConfig(Body):
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


Input = Annotated[Items[Item], BeforeValidator(_as_items, json_schema_input_type=str | list[Item])]


class ConversationId(Body):
    """A conversation by its id."""

    id: str = Field(max_length=MAX_NAME, description="The id of a conversation.")


class InputBody(CallingBody, ModelBody):
    """The fields that make the prompt of a response."""

    input: Input | None = optional(
        "The text of a user message, or items of a conversation. It is required unless `previous_response_id` or "
        "`conversation` is there.",
        max_length=MAX_ITEMS,
    )
    instructions: str | None = optional("A system message before all items.")
    previous_response_id: str | None = optional(
        "The id of a stored response: the items before it, its own and its output come before `input`.",
        max_length=MAX_NAME,
    )
    conversation: str | ConversationId | None = optional(
        "The id of a conversation, whose items come before `input`. Input and output become items of it."
    )
    reasoning: ReasoningConfig | None = optional("Options of the model's reasoning.")
    text: TextConfig | None = optional("Options of the text, its format among them.")
    truncation: Literal["auto", "disabled"] | None = optional(
        "auto: messages at the beginning of the conversation are left out if it does not fit the context. "
        "Default: disabled."
    )

    def check(self) -> None:
        if not self.input and self.previous_response_id is None and self.conversation is None:
            if self.input is None:
                raise InvalidRequest("input is required", param="input", code="missing_required_parameter")
            raise InvalidRequest("input must not be empty", param="input")
        if self.previous_response_id is not None and self.conversation is not None:
            message = "previous_response_id and conversation exclude each other: send one of them"
            raise InvalidRequest(message, param="previous_response_id")
        self.check_computed(self.calls)

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationId) else self.conversation

    @property
    def format(self) -> Format:
        return (self.text and self.text.format) or Format(type="text")

    def chat(self, earlier: Sequence[AnyItem] = (), own: Sequence[AnyItem] | None = None, **more: Any) -> Chat:
        """Return the conversation. `own` is the body's input without references. Raises InvalidRequest.

        Large schemas take time: not for the event loop.
        """
        items = [*earlier, *((self.input or ()) if own is None else own)]
        return chat_of(
            items,
            self.instructions,
            len(earlier),
            calls=self.calls,
            constraint=self.format.constraint,
            reasoning=ReasoningOptions.of_effort((self.reasoning or ReasoningConfig()).effort, "reasoning.effort"),
            **more,
        )


def chat_of(items: Sequence[AnyItem], instructions: str | None, n_earlier: int = 0, **more: Any) -> Chat:
    """Return the conversation of items, of which the first `n_earlier` are stored. Raises InvalidRequest."""
    system = [{"role": "system", "content": instructions}] if instructions else []
    if not (messages := as_messages(items, n_earlier)):
        raise InvalidRequest("input has no message, no call and no output", param="input")
    return Chat(system + messages, names=Names("input", "max_output_tokens"), **more)


class TokensBody(InputBody):
    """The request body of `POST /v1/responses/input_tokens`."""

    harmless = only(personality=())


class CompactBody(ModelBody):
    """The request body of `POST /v1/responses/compact`. It needs `model`, as in OpenAI's API."""

    conversation_id: ClassVar[None] = None

    harmless = only(prompt_cache_retention=("in_memory", "24h"))
    input: Input | None = optional(
        "The text of a user message, or items of a conversation. Default: only those of `previous_response_id`.",
        max_length=MAX_ITEMS,
    )
    instructions: str | None = optional(InputBody.model_fields["instructions"].description or "")
    previous_response_id: str | None = optional("The id of a stored response.", max_length=MAX_NAME)
    service_tier: ServiceTier | None = optional(ONE_TIER)
    prompt_cache_options: PromptCacheOptions | None = optional("Options of OpenAI's prompt cache. They have no effect.")
    prompt_cache_key: str | None = optional("It has no effect: all prompts share cached pages.", max_length=MAX_SALT)

    def check(self) -> None:
        if self.model is None:  # as in OpenAI's API; tests of compatibility check it
            raise InvalidRequest("model is required", param="model")
        if not self.input and self.previous_response_id is None:
            raise InvalidRequest("send input or previous_response_id", param="input")


class ResponsesBody(InputBody, StreamBody, UserBody):
    """The request body of `POST /v1/responses`."""

    harmless = only(context_management=([],), moderation=(), prompt=(), prompt_cache_retention=("in_memory", "24h"))
    synonyms = MappingProxyType({"random_seed": "seed"})
    background: bool | None = optional("true: the answer is computed without a connection. It needs `store`.")
    store: bool | None = optional("Store the response, for `previous_response_id` and GET. Default: true.")
    include: Items[Included] | None = optional(
        f"What the answer has besides: `{LOGPROBS}`. The other values have no effect.",
        max_length=len(get_args(Included)),
    )
    max_output_tokens: int | None = ranged("max_tokens", CHAT_TOKENS, least=1)
    client_metadata: dict[str, Any] | None = optional("Facts about the client. They have no effect.")
    max_tool_calls: int | None = optional("The limit of calls of hosted tools: there are none.", ge=1, le=2**31 - 1)
    metadata: Metadata | None = optional(
        "Strings by name, which the answer repeats: at most 16, with names of 64 and values of 512 characters.",
        max_length=16,
    )
    stream_options: ObfuscationOptions | None = optional("Options of the stream.")
    prompt_cache_options: PromptCacheOptions | None = optional("Options of OpenAI's prompt cache. They have no effect.")
    seed: int | None = ranged("seed")
    random_seed: int | None = synonym("seed", "Mistral's", **limits_of("seed"))
    temperature: float | None = ranged("temperature")
    top_logprobs: int | None = optional(f"The number of alternatives. It needs `{LOGPROBS}`.", ge=0, le=20)
    top_p: float | None = ranged("top_p")

    @property
    def missing_to_resume(self) -> str:
        how = "GET /v1/responses/ID?stream=true&starting_after=NUMBER goes on with a stream in the background"
        return f"background false: {how}" if self.background else super().missing_to_resume

    def check(self) -> None:
        super().check()
        if self.background and self.resume is not None:
            raise InvalidRequest("resume cannot be used with background true", param="resume")
        if self.top_logprobs and self.n_logprobs is None:
            message = f"top_logprobs needs {LOGPROBS} in include, got {self.top_logprobs} without"
            raise InvalidRequest(message, param="top_logprobs")
        if self.background and self.store is False:
            message = "background needs store, got background true with store false"
            raise InvalidRequest(message, param="background")

    @property
    def n_logprobs(self) -> int | None:
        """Return the number of alternatives for each token (None: no logprobs)."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    def chat(self, earlier: Sequence[AnyItem] = (), own: Sequence[AnyItem] | None = None, **more: Any) -> Chat:
        options = Options(given(seed=self.agreed("seed"), temperature=self.temperature, top_p=self.top_p))
        more |= {"options": options, "max_tokens": self.max_output_tokens, "logprobs": self.n_logprobs}
        return super().chat(earlier, own, **more)
