"""What a client may send. Unknown fields are refused by name; null means the default everywhere.

Fields of OpenAI and of other servers that mean nothing here pass while they hold a value that describes what
happens anyway (`harmless_fields.py`). Everything else that is not a field is a 400.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from service.http.errors import InvalidRequest, shown
from service.schema.fields import MAX_ITEMS, Body, Items, TokenIds, expect, optional, ranged, unsupported
from service.schema.harmless import HARMLESS_CHAT, HARMLESS_COMPLETION, HARMLESS_MESSAGE, HARMLESS_STREAM_OPTION
from service.schema.sampling import SamplingBody
from service.schema.tools import MAX_CALLS, Call, ToolsBody
from service.structured.forms import FormBody

MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_SEQUENCES = 1024
MAX_NAME = 256
MAX_SALT = 1024
MAX_TIMEOUT = 86400.0
MAX_USER = 512
CHAT_TOKENS = "Within the context, together with the prompt. Default: what the context leaves."

Prompts = Annotated[
    str | Items[str] | TokenIds | Items[TokenIds],
    expect("a string, a list of strings, a list of token ids or a list of lists of token ids"),
]


def listed(prompts: Prompts) -> list[str] | list[TokenIds]:
    """One or more prompts, each a string or token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]
    return prompts  # type: ignore[return-value]


def check_prompts(name: str, prompts: list[str] | list[TokenIds]) -> int:
    """How many they are. Raises InvalidRequest for none and for too many."""
    if not prompts:
        raise InvalidRequest(f"{name} must not be an empty list", param=name)
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"{name} takes at most {MAX_PROMPTS} prompts, got {len(prompts)}", param=name)
    return len(prompts)


class StreamOptions(Body):
    harmless = HARMLESS_STREAM_OPTION
    include_usage: bool | None = optional("A last chunk with `usage`, and `usage: null` in all others.")
    continuous_usage_stats: bool | None = optional("`usage` so far in every chunk.")


class GenerationBody(SamplingBody, FormBody):
    """What completions and chat share. None: the model's default, or ours."""

    model: str | None = optional("An id of `/v1/models`. Default: the served model.")
    n: int | None = optional("Choices of each prompt; prompts x n at most 1024. Default: 1.", ge=1, le=MAX_CHOICES)
    stream: bool | None = optional("Server-sent events in place of one answer.")
    stream_options: StreamOptions | None = optional("Only when `stream` is true.")
    return_progress: bool | None = optional(
        "Chunks with `prompt_progress` while the prompt is computed. Only when `stream` is true."
    )
    max_tokens: int | None = ranged("max_tokens", "Within the context, together with the prompt. Default: 16.")
    prompt_logprobs: int | None = ranged(
        "prompt_logprobs", "Logprobs of the prompt's tokens, with as many alternatives; not with `stream`."
    )
    return_token_ids: bool | None = optional("Adds `prompt_token_ids` and each choice's `token_ids`.")
    truncate_prompt_tokens: int | None = optional(
        "Keeps the last k tokens of a longer prompt; -1: as many as fit.", ge=-1, le=2**31 - 1
    )
    priority: int | None = optional(
        "Of the requests that wait the lowest comes first. Default: 0.", ge=-(2**63), le=2**63 - 1
    )
    cache_salt: str | None = optional(
        "Prompts share cached pages with those of the same salt only.", min_length=1, max_length=MAX_SALT
    )
    timeout: float | None = optional(
        "Seconds for the whole request, its wait included; what is there by then is the answer, its finish_reason "
        '"timeout".',
        gt=0,
        le=MAX_TIMEOUT,
    )
    user: str | None = optional("Logged as a hash.", max_length=MAX_USER)
    safety_identifier: str | None = optional("As `user`, and before it.", max_length=MAX_USER)

    @property
    def n_prompts(self) -> int:
        return 1

    @property
    def n_choices(self) -> int:
        return self.n or 1

    @property
    def end_user(self) -> str | None:
        """Who asked, as the client calls them."""
        return self.safety_identifier or self.user

    def check(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")
        if self.return_progress and not self.stream:
            raise InvalidRequest("return_progress is only allowed when stream is true", param="return_progress")
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequest("prompt_logprobs is not available when stream is true", param="prompt_logprobs")
        if self.truncate_prompt_tokens == 0:
            message = "truncate_prompt_tokens must be at least 1, or -1 for what fits, got 0"
            raise InvalidRequest(message, param="truncate_prompt_tokens")


class CompletionBody(GenerationBody):
    """`POST /v1/completions`. `logprobs` k reports the k likeliest tokens beside each token; 0 only the token's own."""

    harmless = HARMLESS_COMPLETION
    prompt: Prompts = Field(
        description="A string, a list of strings, token ids, a list of those; at most 1024 prompts."
    )
    suffix: str | None = optional(
        "What comes after the answer, which fills the gap: for models with the tokens `[SUFFIX]` and `[PREFIX]`; not "
        "with `echo`."
    )
    echo: bool | None = optional("The prompt before the answer; scored with `logprobs`; allows `max_tokens` 0.")
    logprobs: int | None = optional("Logprobs of the tokens, with as many alternatives.", ge=0, le=5)
    best_of: int | None = optional(
        "Choices drawn, of which the `n` with the highest mean logprob are given; not with `stream`. Default: n.",
        ge=1,
        le=MAX_CHOICES,
    )

    @property
    def n_prompts(self) -> int:
        return len(self.prompts)

    @property
    def n_drawn(self) -> int:
        return self.best_of or self.n_choices

    @property
    def prompts(self) -> list[str] | list[TokenIds]:
        return listed(self.prompt)

    def check(self) -> None:
        super().check()
        n_prompts = check_prompts("prompt", self.prompts)
        if self.n_drawn < self.n_choices:
            message = f"best_of must be at least n ({self.n_choices}), got {self.best_of}"
            raise InvalidRequest(message, param="best_of")
        if self.stream and self.n_drawn > self.n_choices:
            message = f"best_of must equal n ({self.n_choices}) when stream is true, got {self.best_of}"
            raise InvalidRequest(message, param="best_of")
        if n_prompts * self.n_drawn > MAX_SEQUENCES:
            name = "best_of" if self.best_of else "n"
            message = f"prompts x {name} must be at most {MAX_SEQUENCES}, got {n_prompts} x {self.n_drawn}"
            raise InvalidRequest(message, param=name)
        if self.suffix and (self.echo or self.truncate_prompt_tokens is not None):
            message = "suffix goes neither with echo nor with truncate_prompt_tokens: the prompt is not the beginning"
            raise InvalidRequest(message, param="suffix")
        if self.suffix and not isinstance(self.prompts[0], str):
            raise InvalidRequest("suffix needs a prompt of text, got token ids", param="suffix")
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("max_tokens must be at least 1 unless echo is true, got 0", param="max_tokens")


class TextPart(Body):
    type: Literal["text"] = Field(description='"text".')
    text: str = Field(description="A string; the parts of a message are joined.")


Content = Annotated[
    str | Annotated[Items[TextPart], Field(max_length=MAX_ITEMS)],
    expect(
        f"a string or a list of at most {MAX_ITEMS} parts {{'type': 'text', 'text': ...}} (images and other parts are "
        "not supported)"
    ),
]
ROLES = ("system", "developer", "user", "assistant", "tool")


class Message(Body):
    """One turn. Text parts are concatenated; only an assistant's content may be null."""

    harmless = HARMLESS_MESSAGE
    role: str = Field(description="system, developer, user, assistant or tool.")
    content: Content | None = optional("A string, or a list of text parts; null only for an assistant.")
    name: str | None = optional("Given to chat templates, which may use it.", max_length=MAX_NAME)
    tool_calls: Items[Call] | None = optional("An assistant's calls.", max_length=MAX_CALLS)
    tool_call_id: str | None = optional("Of the call that a message of role tool answers.", max_length=MAX_NAME)
    parsed: Any = optional("What an SDK made of the content; without effect.")

    @model_validator(mode="after")
    def _check_turn(self) -> Self:
        if self.role not in ROLES:
            raise unsupported("role", f"role {shown(self.role)} is not supported: expected one of {', '.join(ROLES)}")
        if self.content is None and self.role != "assistant":
            raise unsupported("content", f"content is required in a message of role {self.role}")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise unsupported("tool_call_id", "tool_call_id belongs to messages of role tool, which need it")
        if self.tool_calls and self.role != "assistant":
            raise unsupported("tool_calls", f"tool_calls belong to messages of role assistant, not {self.role}")
        return self

    def plain(self) -> dict[str, Any]:
        content = self.content or ""
        plain: dict[str, Any] = {
            "role": self.role,
            "content": content if isinstance(content, str) else "".join(part.text for part in content),
        }
        calls = [call.plain() for call in self.tool_calls or ()]
        others = {"name": self.name, "tool_call_id": self.tool_call_id, "tool_calls": calls or None}
        return plain | {name: value for name, value in others.items() if value is not None}


class TemplateBody(Body):
    """How messages are written for the model."""

    add_generation_prompt: bool | None = optional(
        "Opens the model's answer. Default: true, unless `continue_final_message`."
    )
    continue_final_message: bool | None = optional("The answer continues the last message, an assistant's.")
    chat_template_kwargs: dict[str, Any] | None = optional(
        "Values of variables that the model's chat template declares: numbers, strings of up to 1024 characters, true, "
        "false, null."
    )

    @property
    def template_options(self) -> dict[str, Any]:
        """Keyword arguments of `ChatFormat.encode`."""
        continues = bool(self.continue_final_message)
        opens = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        return {
            "add_generation_prompt": opens,
            "continue_final_message": continues,
            "variables": self.chat_template_kwargs or {},
        }

    def check_continuation(self, messages: list[Message]) -> None:
        if not self.continue_final_message:
            return
        if self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt cannot both be true"
            raise InvalidRequest(message, param="add_generation_prompt")
        if messages[-1].role != "assistant":
            message = f"continue_final_message needs a last message of role assistant, got {messages[-1].role}"
            raise InvalidRequest(message, param="continue_final_message")
        if messages[-1].tool_calls:
            message = "the last message calls functions: no answer can continue it, send their results"
            raise InvalidRequest(message, param="messages")


class ChatBody(GenerationBody, TemplateBody, ToolsBody):
    """`POST /v1/chat/completions`. Without a token limit the answer may fill the context."""

    harmless = HARMLESS_CHAT
    messages: Items[Message] = Field(max_length=MAX_ITEMS, description="At least one.")
    max_tokens: int | None = ranged("max_tokens", CHAT_TOKENS, least=1)
    max_completion_tokens: int | None = ranged("max_tokens", "Another name of `max_tokens`.", least=1)
    prompt_cache_key: str | None = optional("Prompts share cached pages without it.", max_length=MAX_SALT)
    logprobs: bool | None = optional("Logprobs of the tokens.")
    top_logprobs: int | None = optional("As many alternatives beside each token.", ge=0, le=20)

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        self.check_continuation(self.messages)
        self.check_tools()
        if self.top_logprobs and not self.logprobs:
            message = f"top_logprobs needs logprobs to be true, got {self.top_logprobs} without"
            raise InvalidRequest(message, param="top_logprobs")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            message = f"max_tokens ({self.max_tokens}) and max_completion_tokens ({self.max_completion_tokens}) differ"
            raise InvalidRequest(f"{message}: send one of them", param="max_tokens")
