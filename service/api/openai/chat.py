"""`POST /v1/chat/completions`: its body, the choice among tools, and the route."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, cast

from pydantic import Field

from model.chat.reasoning import Effort
from model.errors import quoted
from service.access.record import Policy
from service.api.answering import answered
from service.api.call import Answer, Call
from service.api.openai.answer_types import ChatCompletion
from service.api.openai.harmless import HARMLESS_CHAT, NOTICED_CHAT
from service.api.openai.shape import ChatShape
from service.api.prompt import Chat, chat_request, of_chat
from service.api.reasoning import MAX_BUDGET, ReasoningOptions
from service.api.routes import HELLO, post
from service.errors.errors import InvalidRequest
from service.model_settings import ReasoningFormat
from service.schema.conversation import Message, TemplateBody, plain_messages
from service.schema.fields import MAX_ITEMS, Body, Items, Json, limits_of, optional, ranged, synonym
from service.schema.generation import CHAT_TOKENS, GenerationBody, PromptCacheOptions
from service.schema.options import Names
from service.schema.tools import MAX_TOOLS, AllowedCalls, OfferBody, allowed_calls
from service.structured.constraint import constraint


class Named(Body):
    name: str = Field(description="The name of one of the tools.")


class Reference(Body):
    """One of the tools: the model must call it."""

    type: Literal["function"] = Field(description='"function".')
    function: Named = Field(description="Which function.")


class Allowed(Body):
    mode: Literal["auto", "required"] = Field(description="auto: text is allowed too. required: it must call a tool.")
    tools: Items[Reference] = Field(min_length=1, max_length=MAX_TOOLS, description="The tools that may be called.")


class AllowedChoice(Body):
    """Some of the tools."""

    type: Literal["allowed_tools"] = Field(description='"allowed_tools".')
    allowed_tools: Allowed = Field(description="Which tools, and whether one must be called.")


Choice = Literal["none", "auto", "required", "any"] | Reference | AllowedChoice


class ToolsBody(OfferBody):
    """A request with functions that the model may call, and a choice among them."""

    tool_choice: Choice | None = optional(
        "Which functions the model may call: none, auto, required (Mistral's name: any), one function or "
        "`allowed_tools`. Default: auto with tools, otherwise none."
    )
    parallel_tool_calls: bool | None = optional("false: the answer has at most one call. Default: true.")

    @cached_property
    def calls(self) -> AllowedCalls:
        choice, one = self.tool_choice, self.parallel_tool_calls is False
        if isinstance(choice, Reference):
            return allowed_calls(self.offered, [choice.function.name], must=True, one=True)
        if isinstance(choice, AllowedChoice):
            allowed = choice.allowed_tools
            names = [item.function.name for item in allowed.tools]
            return allowed_calls(self.offered, names, must=allowed.mode == "required", one=one)
        chosen: list[str] | None = [] if choice == "none" else None
        return allowed_calls(self.offered, chosen, must=choice in ("required", "any"), one=one)


def alternatives(logprobs: bool | int | None, top_logprobs: int | None, n_probs: int | None) -> int | None:
    """Return the number of alternatives in these fields (None: no logprobs). Raises InvalidRequest if they differ.

    A number in `logprobs`, as in completions, is that of alternatives. true leaves it to `top_logprobs` (chat) or
    `n_probs` (llama.cpp).
    """
    off = logprobs is None or logprobs is False
    if off and top_logprobs and not n_probs:
        message = f"top_logprobs needs logprobs to be true, got {top_logprobs} without"
        raise InvalidRequest(message, param="top_logprobs")
    if off and not n_probs:
        return None
    names = {"logprobs": logprobs, "top_logprobs": top_logprobs, "n_probs": n_probs or None}
    given = {name: value for name, value in names.items() if value is not None and value is not True}
    if len(set(given.values())) > 1 or False in (value for value in given.values() if isinstance(value, bool)):
        (name, value), (other, another) = list(given.items())[:2]
        message = f"{name} ({quoted(value)}) and {other} ({quoted(another)}) differ: send one of them"
        raise InvalidRequest(message, param=name)
    return next(iter(given.values()), 0)


class ThinkingOptions(Body):
    """LiteLLM's field for reasoning, as in Anthropic's API."""

    type: Literal["enabled", "disabled", "adaptive"] = Field(
        description="enabled: as `reasoning_effort` high. disabled: as none. adaptive: the model decides."
    )
    budget_tokens: int | None = optional("`thinking_token_budget`, with type enabled.", ge=0, le=MAX_BUDGET)


EFFORTS_OF_TYPES: Mapping[str, Effort | None] = {"enabled": "high", "disabled": "none", "adaptive": None}


class ChatBody(GenerationBody, TemplateBody, ToolsBody):
    """The request body of `POST /v1/chat/completions`."""

    harmless = HARMLESS_CHAT
    noticed = NOTICED_CHAT
    synonyms = MappingProxyType({**GenerationBody.synonyms, "max_completion_tokens": "max_tokens"})
    messages: Items[Message] = Field(max_length=MAX_ITEMS, description="The conversation: at least one message.")
    max_tokens: int | None = ranged("max_tokens", CHAT_TOKENS, least=1)
    max_completion_tokens: int | None = synonym("max_tokens", "OpenAI's new", **limits_of("max_tokens", least=1))
    n_predict: int | None = synonym("max_tokens", "llama.cpp's", **limits_of("max_tokens", least=1))
    prompt_cache_options: PromptCacheOptions | None = optional("Options of OpenAI's prompt cache. They have no effect.")
    prediction: Json | None = optional("A guess of the answer, to save time. It has no effect.")
    reasoning_effort: Effort | None = optional(
        "How long the model thinks: none, or minimal to max. Default: the model's own. It has no effect on a model "
        "without reasoning."
    )
    prompt_mode: Literal["reasoning"] | None = optional("Mistral's name of `reasoning_effort` high.")
    thinking: ThinkingOptions | None = optional("Whether, and how long, the model thinks.")
    thinking_token_budget: int | None = optional(
        "The number of tokens after which the thought ends with its sentence. Default: `--reasoning-budget`.",
        ge=0,
        le=MAX_BUDGET,
    )
    include_reasoning: bool | None = optional("false: leave the thought out of the answer. Default: true.")
    reasoning_format: ReasoningFormat | None = optional(
        "auto, deepseek: the thought is in `reasoning_content`. mistral: it is a chunk of the content, and a stream "
        "ends with `usage`, as in Mistral's API. none: it is in the content, with its marks. Default: "
        "`--reasoning-format`."
    )
    logprobs: bool | None = optional("Report the logprob of each token.")
    top_logprobs: int | None = optional("The number of alternatives for each token. It needs `logprobs`.", ge=0, le=20)
    n_probs: int | None = optional("llama.cpp's `top_logprobs`. Above 0 it also turns `logprobs` on.", ge=0, le=20)

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        self.check_continuation(self.messages)
        if self.thinking and self.thinking.budget_tokens is not None and self.thinking.type != "enabled":
            message = f"thinking.budget_tokens needs thinking.type enabled, got {quoted(self.thinking.type)}"
            raise InvalidRequest(message, param="thinking.budget_tokens")
        self.check_computed(self.calls, self.n_logprobs, self.reasoning_options)

    @cached_property
    def n_logprobs(self) -> int | None:
        """Return the number of alternatives for each token (None: no logprobs)."""
        return alternatives(self.logprobs, self.top_logprobs, self.n_probs)

    @property
    def reasoning_options(self) -> ReasoningOptions:
        """Return what all fields about reasoning request together. Raises InvalidRequest where they contradict."""
        kind = self.thinking.type if self.thinking else "adaptive"
        mode = "high" if self.prompt_mode else None
        efforts = {"reasoning_effort": self.reasoning_effort, "prompt_mode": mode, "thinking": EFFORTS_OF_TYPES[kind]}
        effort_field, effort = _consistent(efforts, {"prompt_mode": self.prompt_mode, "thinking": kind})
        own = self.thinking.budget_tokens if self.thinking else None
        budgets = {"thinking_token_budget": self.thinking_token_budget, "thinking": own}
        budget_field, budget = _consistent(budgets)
        field = effort_field if effort not in (None, "none") or budget is None else budget_field
        options = ReasoningOptions.of_effort(effort, field, budget=budget)
        also = tuple(name for name, value in (*efforts.items(), *budgets.items()) if value and value != "none")
        return replace(options, apart=self.reasoning_format != "none", also=also)

    def chat(self) -> Chat:
        """Return the conversation to answer. Raises InvalidRequest. Large schemas take time: not for the event loop."""
        return Chat(
            plain_messages(self.messages),
            self.calls,
            self.template_options(self.messages),
            constraint(self),
            self.options,
            max_tokens=self.agreed("max_tokens"),
            logprobs=self.n_logprobs,
            reasoning=self.reasoning_options,
            names=Names(max_tokens=self.given_as("max_tokens"), content="messages[{}].content"),
        )


def _consistent(fields: Mapping[str, Any], said: Mapping[str, Any] = MappingProxyType({})) -> tuple[str, Any]:
    """Return the first field that is not None, and its value. Raises InvalidRequest where a later one contradicts it.

    Efforts differ only where one of them is "none". `said` are the client's words, where they are others.
    """
    (name, value), *others = [item for item in fields.items() if item[1] is not None] or [(next(iter(fields)), None)]
    for other, another in others:
        if value != another and (type(value) is int or "none" in (value, another)):
            words = [f"{field} ({quoted(said.get(field, fields[field]))})" for field in (name, other)]
            message = f"{' and '.join(words)} contradict each other: send one of them"
            raise InvalidRequest(message, param=other)
    return name, value


def _default_format(call: Call) -> ReasoningFormat:
    """Return the format of thoughts for a request that does not say: its key's, or the model's."""
    own = call.record.key.entry.reasoning_format if call.record.key else None
    return cast(ReasoningFormat, own or call.model.entry.settings.reasoning_format)


def _is_mistrals(call: Call, body: ChatBody) -> bool:
    """Return whether the client speaks Mistral's dialect: it says who it is, or sends a field that only Mistral has.

    LiteLLM has one name for all servers, and reads both dialects. Mistral's packages fail at a piece of a call without
    a name, and OpenAI's package for Node at one with an empty name.
    """
    agent = call.request.headers.get("user-agent", "").lower()
    fields = (body.safe_prompt, body.random_seed)
    return "mistral" in agent or "litellm" in agent or any(value is not None for value in fields)


@post(
    "/v1/chat/completions",
    body=ChatBody,
    request={"messages": HELLO, "max_tokens": 8},
    answer=ChatCompletion,
    policy=Policy(operation="chat", resumes=True),
)
async def chat_completions(call: Call, body: ChatBody) -> Answer:
    """Answer a conversation

    Without a token limit the answer may fill the context.
    """
    mistrals = _is_mistrals(call, body)
    body = body.model_copy(update={"reasoning_format": body.reasoning_format or _default_format(call)})
    in_chunks = body.reasoning_format == "mistral"
    shape = ChatShape(
        body,
        body.n_logprobs is not None,
        mistral=mistrals or in_chunks,
        chunks_thoughts=in_chunks,
        calls=bool(body.calls.functions),
        thoughts=body.include_reasoning is not False,
    )
    await call.admitted(body, shape)
    return await answered(call, of_chat(call, body.chat, chat_request), shape)
