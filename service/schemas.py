"""What a client may send. Unknown fields are refused by name; null means the default everywhere.

Fields of OpenAI and of other servers that mean nothing here pass while they hold a value that describes what
happens anyway (`harmless_fields.py`). Everything else that is not a field is a 400.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from service.errors import InvalidRequest, shown
from service.harmless_fields import (
    ANY_STRING,
    HARMLESS_CHAT,
    HARMLESS_COMPLETION,
    HARMLESS_MESSAGE,
    HARMLESS_TEMPLATE,
    HARMLESS_TOKENIZE,
    accepts,
)

MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_SEQUENCES = 1024
TOKEN_ID = re.compile(r"-?[0-9]{1,12}")
SHOWN_FIELDS = 8

T = TypeVar("T")


class Body(BaseModel):
    """Strict types, finite numbers, no unknown fields save the harmless ones."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())
    harmless: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="after")
    def _refuse_extras(self) -> Self:
        extras = self.__pydantic_extra__ or {}
        unknown = [name for name in extras if name not in self.harmless]
        if unknown:
            names = ", ".join(map(shown, unknown[:SHOWN_FIELDS])) + (", ..." if unknown[SHOWN_FIELDS:] else "")
            raise unsupported(unknown[0], f"unknown or unsupported field: {names}")
        for name, value in extras.items():
            allowed = self.harmless[name]
            if not accepts(allowed, value):
                choices = " or ".join(
                    ["a string" if other is ANY_STRING else repr(other) for other in allowed] + ["null"]
                )
                raise unsupported(name, f"{name} is not supported: only {choices} passes, got {shown(value)}")
        return self

    def check(self) -> None:
        """What needs more than one field to judge. Raises InvalidRequest."""


def unsupported(name: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported_field", "{message}", {"message": message, "param": name})


def expect(expected: str) -> WrapValidator:
    """One message for a union, in place of one for each of its members."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValueError:
            raise PydanticCustomError("expected", "must be {expected}", {"expected": expected}) from None

    return WrapValidator(validate)


Items = Annotated[list[T], Field(fail_fast=True)]
"""A list whose first bad item ends its validation: a body may hold millions of them."""
TokenIds = Items[int]
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Prompts = Annotated[
    str | Items[str] | TokenIds | Items[TokenIds],
    expect("a string, a list of strings, a list of token ids or a list of lists of token ids"),
]
Stops = Annotated[str | Items[str], expect("a string or a list of strings")]


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
    harmless = {"include_obfuscation": (False,)}
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(Body):
    """What completions and chat share. None: the model's default, or ours."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Integer | None = None
    min_tokens: Integer | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Integer | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None  # `biases` checks it: a typed dict would list all its errors
    seed: Integer | None = None
    stop: Stops | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    prompt_lookup_num_tokens: Integer | None = None

    @property
    def n_choices(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        biases = self.logit_bias or {}
        for token, value in biases.items():
            if type(value) not in (int, float):
                raise InvalidRequest(f"logit_bias.{token} should be a number, got {shown(value)}", param="logit_bias")
            if not TOKEN_ID.fullmatch(token):
                raise InvalidRequest(f"logit_bias has key {shown(token)}, expected token ids", param="logit_bias")
        return tuple((int(token), value) for token, value in biases.items())

    def check(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")


class CompletionBody(GenerationBody):
    """`POST /v1/completions`. `logprobs` k reports the k likeliest tokens beside each token; 0 only the token's own."""

    harmless = HARMLESS_COMPLETION
    prompt: Prompts
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Integer | None = None

    @property
    def prompts(self) -> list[str] | list[TokenIds]:
        return listed(self.prompt)

    def check(self) -> None:
        super().check()
        n_prompts = check_prompts("prompt", self.prompts)
        if n_prompts * self.n_choices > MAX_SEQUENCES:
            message = f"prompts x n must be at most {MAX_SEQUENCES}, got {n_prompts} x {self.n_choices}"
            raise InvalidRequest(message, param="n")
        if self.best_of not in (None, self.n_choices):
            message = f"best_of is not supported: it must equal n ({self.n_choices}), got {self.best_of}"
            raise InvalidRequest(message, param="best_of")
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("max_tokens must be at least 1 unless echo is true, got 0", param="max_tokens")


class TextPart(Body):
    type: Literal["text"]
    text: str


Content = Annotated[
    str | Items[TextPart],
    expect("a string or a list of parts {'type': 'text', 'text': ...} (images and other parts are not supported)"),
]
ROLES = ("system", "developer", "user", "assistant")


class Message(Body):
    """One turn. Text parts are concatenated; only an assistant's content may be null."""

    harmless = HARMLESS_MESSAGE
    role: str
    content: Content | None = None

    @model_validator(mode="after")
    def _check_turn(self) -> Self:
        if self.role not in ROLES:
            raise unsupported("role", f"role {shown(self.role)} is not supported: expected one of {', '.join(ROLES)}")
        if self.content is None and self.role != "assistant":
            raise unsupported("content", f"content is required in a message of role {self.role}")
        return self

    def plain(self) -> dict[str, str]:
        content = self.content or ""
        return {
            "role": self.role,
            "content": content if isinstance(content, str) else "".join(part.text for part in content),
        }


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`. Without a token limit the answer may fill the context."""

    harmless = HARMLESS_CHAT
    messages: Items[Message]
    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            message = f"max_tokens ({self.max_tokens}) and max_completion_tokens ({self.max_completion_tokens}) differ"
            raise InvalidRequest(f"{message}: send one of them", param="max_tokens")
        if 0 in limits:
            raise InvalidRequest("max_tokens must be at least 1, got 0", param="max_tokens")


class TemplateBody(Body):
    """`POST /apply-template`."""

    harmless = HARMLESS_TEMPLATE
    model: str | None = None
    messages: Items[Message]
    add_generation_prompt: bool | None = None

    def check(self) -> None:
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")


class TokenizeBody(Body):
    """`POST /tokenize`: a prompt as completions take it, or messages as chat takes them.

    `content` is llama.cpp's prompt, which begins with no begin token unless `add_special`.
    """

    harmless = HARMLESS_TOKENIZE
    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None
    messages: Items[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        if [self.prompt, self.content, self.messages].count(None) != 2:
            raise InvalidRequest("send either prompt or content or messages", param="prompt")
        if self.messages is not None and not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        if self.messages is not None and self.add_special_tokens:
            message = "add_special_tokens is not supported with messages: the chat format brings its own"
            raise InvalidRequest(message, param="add_special_tokens")
        if self.add_special is not None and self.content is None:
            raise InvalidRequest("add_special needs content", param="add_special")
        if self.add_special_tokens is not None and self.content is not None:
            raise InvalidRequest("content goes with add_special, not with add_special_tokens", param="content")
        if self.messages is None and self.add_generation_prompt is not None:
            raise InvalidRequest("add_generation_prompt needs messages", param="add_generation_prompt")


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds
