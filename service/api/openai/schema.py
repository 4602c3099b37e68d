"""The request bodies of OpenAI's completions and chat endpoints."""

from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from model.chat.reasoning import Effort
from model.errors import quoted
from service.api.openai.harmless import HARMLESS_CHAT, HARMLESS_COMPLETION
from service.api.prompt import Chat
from service.api.reasoning import MAX_BUDGET, ReasoningOptions
from service.errors.errors import InvalidRequest
from service.schema.conversation import Message, TemplateBody, plain_messages
from service.schema.fields import MAX_ITEMS, Body, Items, TokenIds, limits_of, optional, ranged, synonym
from service.schema.generation import MAX_CHOICES, MAX_SALT, GenerationBody
from service.schema.prompts import MAX_PROMPTS, Prompts, check_prompts, listed
from service.schema.tools import MAX_TOOLS, AllowedCalls, OfferBody, allowed_calls
from service.structured.constraint import constraint


class Named(Body):
    name: str = Field(description="The name of one of the tools.")


class Reference(Body):
    """One of the tools: the model must call it."""

    type: Literal["function"] = Field(description='"function".')
    function: Named = Field(description="Which function.")


class Allowed(Body):
    mode: Literal["auto", "required"] = Field(
        description="auto: the model may answer with text. required: it must call a tool."
    )
    tools: Items[Reference] = Field(min_length=1, max_length=MAX_TOOLS, description="The tools that may be called.")


class AllowedChoice(Body):
    """Some of the tools."""

    type: Literal["allowed_tools"] = Field(description='"allowed_tools".')
    allowed_tools: Allowed = Field(description="Which tools, and whether one must be called.")


Choice = Literal["none", "auto", "required"] | Reference | AllowedChoice


class ToolsBody(OfferBody):
    """A request with functions that the model may call, and a choice among them."""

    tool_choice: Choice | None = optional(
        "Which functions the model may call: none, auto, required, one function or `allowed_tools`. Default: auto with "
        "tools, otherwise none."
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
        return allowed_calls(self.offered, [] if choice == "none" else None, must=choice == "required", one=one)


def alternatives(logprobs: bool | int | None, top_logprobs: int | None, n_probs: int | None) -> int | None:
    """The number that a request wants under these names; None: no logprobs. Raises InvalidRequest if they differ.

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


MAX_SEQUENCES = 1024
MAX_ALTERNATIVES = 5
"""The number of alternatives for each token of a completion: OpenAI's limit."""
CHAT_TOKENS = (
    "The maximum number of generated tokens. Prompt and answer together must fit the context. "
    "Default: what the prompt leaves of the context."
)


class CompletionBody(GenerationBody):
    """The request body of `POST /v1/completions`."""

    harmless = HARMLESS_COMPLETION
    prompt: Prompts = Field(
        description=f"A string, a list of strings, token ids, or a list of token ids. At most {MAX_PROMPTS} prompts."
    )
    suffix: str | None = optional(
        "The text after the answer: the model fills the gap between `prompt` and `suffix`. It needs a model with the "
        "tokens `[SUFFIX]` and `[PREFIX]`. Not allowed with `echo`."
    )
    echo: bool | None = optional(
        "Return the prompt before the answer, with its logprobs if `logprobs` is given. `max_tokens` may then be 0."
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | bool | None = optional(
        f"Report the logprob of each token, with this many alternatives (0 to {MAX_ALTERNATIVES}). true: with "
        "`top_logprobs` of them, as in chat."
    )
    top_logprobs: int | None = optional(
        "The number of alternatives, if `logprobs` is true. Default: 0.", ge=0, le=MAX_ALTERNATIVES
    )
    n_probs: int | None = optional(
        "llama.cpp's name of the number in `logprobs`. 0: no logprobs.", ge=0, le=MAX_ALTERNATIVES
    )
    best_of: int | None = optional(
        "The number of choices to generate. The answer has the `n` with the highest mean logprob. Not allowed with "
        "`stream`. Default: n.",
        ge=1,
        le=MAX_CHOICES,
    )

    @property
    def n_prompts(self) -> int:
        return len(self.prompts)

    @property
    def n_generated(self) -> int:
        return self.best_of or self.n_choices

    @property
    def prompts(self) -> list[str] | list[TokenIds]:
        return listed(self.prompt)

    @cached_property
    def n_logprobs(self) -> int | None:
        """The number of alternatives for each token (None: no logprobs)."""
        return alternatives(self.logprobs, self.top_logprobs, self.n_probs)

    def check(self) -> None:
        super().check()
        self.n_logprobs  # noqa: B018 - it raises
        n_prompts = check_prompts("prompt", self.prompts)
        if self.n_generated < self.n_choices:
            message = f"best_of must be at least n ({self.n_choices}), got {self.best_of}"
            raise InvalidRequest(message, param="best_of")
        if self.stream and self.n_generated > self.n_choices:
            message = f"best_of must equal n ({self.n_choices}) when stream is true, got {self.best_of}"
            raise InvalidRequest(message, param="best_of")
        if n_prompts * self.n_generated > MAX_SEQUENCES:
            name = "best_of" if self.best_of else "n"
            message = f"prompts x {name} must be at most {MAX_SEQUENCES}, got {n_prompts} x {self.n_generated}"
            raise InvalidRequest(message, param=name)
        if self.suffix and (self.echo or self.truncate_prompt_tokens is not None):
            message = (
                "suffix cannot be used with echo or truncate_prompt_tokens, because the suffix comes before the prompt"
            )
            raise InvalidRequest(message, param="suffix")
        if self.suffix and not isinstance(self.prompts[0], str):
            raise InvalidRequest("suffix needs a prompt of text, got token ids", param="suffix")
        if self.agreed("max_tokens") == 0 and not self.echo:
            name = self.given_as("max_tokens")
            raise InvalidRequest(f"{name} must be at least 1 unless echo is true, got 0", param=name)


class ChatBody(GenerationBody, TemplateBody, ToolsBody):
    """The request body of `POST /v1/chat/completions`."""

    harmless = HARMLESS_CHAT
    synonyms = MappingProxyType({**GenerationBody.synonyms, "max_completion_tokens": "max_tokens"})
    messages: Items[Message] = Field(max_length=MAX_ITEMS, description="The conversation: at least one message.")
    max_tokens: int | None = ranged("max_tokens", CHAT_TOKENS, least=1)
    max_completion_tokens: int | None = synonym("max_tokens", "OpenAI's new", **limits_of("max_tokens", least=1))
    n_predict: int | None = synonym("max_tokens", "llama.cpp's", **limits_of("max_tokens", least=1))
    prompt_cache_key: str | None = optional("It has no effect: all prompts share cached pages.", max_length=MAX_SALT)
    reasoning_effort: Effort | None = optional(
        "How long the model thinks: none, or minimal to max. Default: the model's own. A model without reasoning takes "
        "only none."
    )
    thinking_token_budget: int | None = optional(
        "The number of tokens after which the thought ends with its sentence. Default: `--reasoning-budget`.",
        ge=0,
        le=MAX_BUDGET,
    )
    include_reasoning: bool | None = optional("false: leave the thought out of the answer. Default: true.")
    reasoning_format: Literal["auto", "deepseek", "none"] | None = optional(
        "none: leave the thought, with its marks, in the content. Default: auto, as `reasoning_content`."
    )
    logprobs: bool | None = optional("Report the logprob of each token.")
    top_logprobs: int | None = optional("The number of alternatives for each token. It needs `logprobs`.", ge=0, le=20)
    n_probs: int | None = optional(
        "llama.cpp's name of `top_logprobs`. A number above 0 also turns `logprobs` on.", ge=0, le=20
    )

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        self.check_continuation(self.messages)
        self.calls, self.n_logprobs  # noqa: B018 - they raise

    @cached_property
    def n_logprobs(self) -> int | None:
        """The number of alternatives for each token (None: no logprobs)."""
        return alternatives(self.logprobs, self.top_logprobs, self.n_probs)

    @property
    def reasoning_options(self) -> ReasoningOptions:
        efforts = self.reasoning_effort not in (None, "none") or self.thinking_token_budget is None
        field = "reasoning_effort" if efforts else "thinking_token_budget"
        options = ReasoningOptions.of_effort(self.reasoning_effort, field, budget=self.thinking_token_budget)
        return replace(options, apart=self.reasoning_format != "none")

    def chat(self) -> Chat:
        """What the body asks, as `Chat`. Raises InvalidRequest. Large schemas take time: not for the event loop."""
        return Chat(
            plain_messages(self.messages),
            self.calls,
            self.template_options,
            constraint(self),
            self,
            max_tokens=self.agreed("max_tokens"),
            logprobs=self.n_logprobs,
            reasoning=self.reasoning_options,
            max_tokens_field=self.given_as("max_tokens"),
        )
