"""Fields that completion and chat requests share: sampling, with the names that clients use, and OpenAI's others."""

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model

from model.errors import quoted
from model.sampling_params import (
    BIAS_LIMIT,
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASED_TOKENS,
    MAX_PATTERN_COUNT,
    MAX_PATTERN_SIZE,
    MAX_STOP_CHARS,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    PARAMETERS,
    RepetitionDetection,
)
from service.access.entry import PRIORITIES
from service.errors.errors import InvalidRequest
from service.schema.fields import (
    Body,
    Items,
    ModelBody,
    Repeated,
    TokenIds,
    expect,
    limits_of,
    listed,
    only,
    optional,
    ranged,
    synonym,
)
from service.schema.options import Options
from service.schema.structured_output import StructuredOutputBody

TOKEN_ID = re.compile(r"-?[0-9]{1,12}")

BadWord = Annotated[str, Field(max_length=MAX_STOP_CHARS, pattern="[^ ]")]
Stops = Annotated[str | Items[str], expect("a string or a list of strings")]

DECLARED = tuple(name for name, row in PARAMETERS.items() if row.description is not None)
if TYPE_CHECKING:
    DeclaredBody = Body
else:
    DeclaredBody = create_model(
        "DeclaredBody", __base__=Body, **{name: (PARAMETERS[name].kind | None, ranged(name)) for name in DECLARED}
    )


class RepetitionBody(Body):
    """vLLM's `repetition_detection`."""

    max_pattern_size: int | None = optional(
        "The greatest number of tokens in the pattern. 0 turns the detection off. Default: 0.",
        ge=0,
        le=MAX_PATTERN_SIZE,
    )
    min_pattern_size: int | None = optional(
        "The least number of tokens in the pattern; 0 means 1. Default: 0.", ge=0, le=MAX_PATTERN_SIZE
    )
    min_count: int | None = optional(
        "The number of copies that end the answer, 2 at least. Required unless the detection is off.",
        ge=0,
        le=MAX_PATTERN_COUNT,
    )

    @property
    def rule(self) -> RepetitionDetection:
        """Return the rule. Raises ParameterError."""
        return RepetitionDetection(self.max_pattern_size or 0, self.min_pattern_size or 0, self.min_count or 0)


class SamplingBody(DeclaredBody):
    """The fields of `PARAMETERS`, and those that clients write in another way than `SamplingParams` has them.

    None: the model's default, or the server's.
    """

    synonyms = MappingProxyType({"repeat_penalty": "repetition_penalty", "random_seed": "seed"})
    repeat_penalty: float | None = synonym("repetition_penalty", "llama.cpp's", **limits_of("repetition_penalty"))
    random_seed: int | None = synonym("seed", "Mistral's", **limits_of("seed"))
    logit_bias: dict[str, Any] | None = optional(  # `biases` checks it: a typed dict would list all its errors
        f"A map from token ids to numbers from {-BIAS_LIMIT:g} to {BIAS_LIMIT:g}, which are added to their logits. "
        f"At most {MAX_BIASED_TOKENS} entries."
    )
    allowed_token_ids: TokenIds | None = optional(
        "The only tokens that may be sampled.", min_length=1, max_length=MAX_ALLOWED_TOKENS
    )
    bad_words: Items[BadWord] | None = optional(
        "Words that the answer must not have, neither as a word nor inside one. The last token of a word is never "
        "sampled after its other tokens.",
        max_length=MAX_BAD_WORDS,
    )
    stop: Stops | None = optional(
        f"A string, or up to {MAX_STOPS} strings, of 1 to {MAX_STOP_CHARS} characters. The text ends before the first "
        "of them that appears."
    )
    stop_token_ids: TokenIds | None = optional(
        f"Tokens that end the answer. At most {MAX_STOP_TOKENS}, including the model's end tokens."
    )
    repetition_detection: RepetitionBody | None = optional(
        "Cuts the answer at the token that completes `min_count` copies of a pattern in a row. Not allowed with "
        "structured output or tools. Default: the server's."
    )

    @property
    def given(self) -> dict[str, Any]:
        """Return the values that the request gives for the fields of `PARAMETERS`."""
        return {name: value for name in DECLARED if (value := self.agreed(name)) is not None}

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        biases = self.logit_bias or {}
        for token, value in biases.items():
            if not TOKEN_ID.fullmatch(token):
                raise InvalidRequest(f"logit_bias has key {quoted(token)}, expected token ids", param="logit_bias")
            if type(value) not in (int, float):
                raise InvalidRequest(f"logit_bias.{token} must be a number, got {quoted(value)}", param="logit_bias")
        return tuple((int(token), value) for token, value in biases.items())


ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast", "standard_only"]
"""Names of OpenAI and Mistral. They say which hardware answers, and when: never which answer."""
ONE_TIER = "It has no effect: there is one tier, `default`."
MAX_CHOICES = 128
MAX_SALT = 1024
MAX_TIMEOUT = 86400.0
MAX_USER = 512


class ObfuscationOptions(Body):
    """OpenAI's option of streams. Noria pads no events."""

    harmless = only(include_obfuscation=(False,))
    noticed = only(include_obfuscation=(True,))


class StreamOptions(ObfuscationOptions):
    harmless = only(**ObfuscationOptions.harmless, stream_tool_calls=(True,))
    include_usage: bool | None = optional(
        "true: send a last chunk with `usage`. All other chunks have `usage: null`. false: send none. Default: the "
        "value of `continuous_usage_stats`."
    )
    continuous_usage_stats: bool | None = optional("true: also send the usage so far in every chunk.")

    @property
    def ends_with_usage(self) -> bool:
        return bool(self.continuous_usage_stats) if self.include_usage is None else self.include_usage

    @property
    def counts_on(self) -> bool:
        """Return whether every chunk has the usage so far."""
        return bool(self.continuous_usage_stats) and self.ends_with_usage


class UsageOptions(Body):
    """OpenRouter's option for the usage in a stream."""

    include: bool | None = optional("true: send `usage` at the end of a stream, as `stream_options` does.")


CHAT_TOKENS = (
    "The maximum number of generated tokens. Prompt and answer together must fit the context. "
    "Default: what the prompt leaves of the context."
)
"""The description of `max_tokens` in chat."""
ReceiptField = Annotated[bool | Literal["full"], expect('true, false or "full"')]


class ResumeBody(Body):
    """The part of an answer that a client has: the answer goes on after it, and a stream begins after it."""

    tokens: Annotated[TokenIds | Items[TokenIds], expect("a list of token ids, or one for each choice")] = Field(
        description="All token ids of the answer so far, as `return_token_ids` gives them: a list, or one a choice."
    )
    seed: Annotated[int, Field(**limits_of("seed"))] = Field(
        description="The seed of the answer. It takes the place of the request's."
    )
    fingerprint: str = Field(description="The `system_fingerprint` of the answer.", max_length=MAX_SALT)

    @property
    def known(self) -> list[TokenIds]:
        """Return the tokens of each choice."""
        return listed(self.tokens) if self.tokens else [[]]  # type: ignore[return-value]


class StreamBody(ModelBody):
    """A request whose answer may be streamed."""

    stream: bool | None = optional("Send the answer as server-sent events while it is generated.")
    receipt: ReceiptField | None = optional(
        "true: add `receipts`, a signed receipt of each choice, to the answer or the last event of its stream. "
        '"full": with the body of the request, the tokens and the text in it. Default: `--receipts`.'
    )
    resume: ResumeBody | None = optional(
        "What the client has of the answer, to go on with it in any server of the same fingerprint (docs/state.md). "
        "Not allowed with log probabilities, or with `receipt`: a receipt is for what the server has computed."
    )

    @property
    def missing_to_resume(self) -> str:
        """Return what the request must have so that its stream can resume; empty if it can."""
        return "" if self.stream else "stream true"


class PromptCacheOptions(Body):
    """Options of OpenAI's prompt cache. Here all prompts share cached pages, for as long as there is memory."""

    harmless = only(comparison_response_id=(), mode=("implicit", "explicit"), prewarm=(False,), ttl=("30m", "12h"))


class UserBody(ModelBody):
    """The fields that requests of OpenAI's APIs share, and that change no answer."""

    service_tier: ServiceTier | None = optional(ONE_TIER)
    prompt_cache_key: str | None = optional("It has no effect: all prompts share cached pages.", max_length=MAX_SALT)
    user: str | None = optional("The end user. The log has a hash of it.", max_length=MAX_USER)
    safety_identifier: str | None = optional("The end user. It takes precedence over `user`.", max_length=MAX_USER)

    @property
    def end_user(self) -> str | None:
        return self.safety_identifier or self.user


class GenerationBody(SamplingBody, StructuredOutputBody, StreamBody, UserBody):
    """The fields that completions and chat share. None: the model's default, or the server's."""

    synonyms = MappingProxyType({**SamplingBody.synonyms, **StructuredOutputBody.synonyms, "n_predict": "max_tokens"})
    n: int | None = optional(
        "The number of choices for each prompt. `n` times the number of prompts is at most 1024. Default: 1.",
        ge=1,
        le=MAX_CHOICES,
    )
    stream_options: StreamOptions | None = optional("Options of the stream. Allowed only when `stream` is true.")
    return_progress: bool | None = optional("Send chunks with `prompt_progress` in prefill. It needs `stream` true.")
    max_tokens: int | None = ranged(
        "max_tokens",
        "The maximum number of generated tokens. Prompt and answer together must fit the context. Default: 16.",
    )
    n_predict: int | None = synonym("max_tokens", "llama.cpp's", **limits_of("max_tokens"))
    usage: UsageOptions | None = optional("OpenRouter's `stream_options.include_usage`, which takes precedence.")
    prompt_logprobs: Annotated[int, Field(**limits_of("prompt_logprobs"))] | bool | None = optional(
        "Report the logprob of each prompt token, with this many alternatives. true: with `top_prompt_logprobs` of "
        "them, and in chats in the form of Mistral's API; `n` must be 1. Not allowed with `stream`."
    )
    top_prompt_logprobs: int | None = optional(
        "The number of alternatives for each prompt token, if `prompt_logprobs` is true. Default: 0.",
        **limits_of("prompt_logprobs"),
    )
    return_token_ids: bool | None = optional("Add `prompt_token_ids` and the `token_ids` of each choice to the answer.")
    truncate_prompt_tokens: int | None = optional(
        "Cut a longer prompt to its last k tokens. -1: to as many tokens as fit.", ge=-1, le=2**31 - 1
    )
    priority: int | None = optional(
        "The scheduler admits waiting requests with the lowest number first. A number below 0 needs a key that may "
        "send it. Default: 0.",
        ge=PRIORITIES[0],
        le=PRIORITIES[1],
    )
    cache_salt: str | None = optional(
        "Prompts share cached pages only with prompts that have the same salt.", min_length=1, max_length=MAX_SALT
    )
    timeout: float | None = optional(
        "The time limit of the request in seconds, including the time in the queue. At the limit the answer ends, "
        'with finish_reason "timeout".',
        gt=0,
        le=MAX_TIMEOUT,
    )
    metadata: Repeated | None = optional("Facts for the client, without effect. The answer repeats them.")
    safe_prompt: bool | None = optional("Mistral's field. true is refused: Noria does not add Mistral's guard prompt.")

    @property
    def n_prompts(self) -> int:
        return 1

    @property
    def n_prompt_logprobs(self) -> int | None:
        """Return the number of alternatives for each prompt token (None: no logprobs)."""
        if isinstance(self.prompt_logprobs, bool):
            return self.top_prompt_logprobs or 0 if self.prompt_logprobs else None
        return self.prompt_logprobs

    @property
    def streaming(self) -> StreamOptions:
        options = self.stream_options or StreamOptions()
        if options.include_usage is None and self.usage is not None:
            return options.model_copy(update={"include_usage": self.usage.include})
        return options

    @property
    def n_choices(self) -> int:
        return self.n or 1

    @property
    def options(self) -> Options:
        """Return the options of the answer. Raises InvalidRequest and ParameterError."""
        return Options(
            self.given,
            self.biases,
            self.allowed_token_ids or (),
            self.bad_words or (),
            self.stops,
            self.stop_token_ids or (),
            self.repetition_detection.rule if self.repetition_detection else None,
            self.n_choices,
            self.priority or 0,
            self.cache_salt or "",
            self.timeout,
            self.n_prompt_logprobs,
            self.truncate_prompt_tokens,
            bool(self.return_token_ids),
            bool(self.return_progress),
        )

    def check(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")
        if self.return_progress and not self.stream:
            raise InvalidRequest("return_progress is only allowed when stream is true", param="return_progress")
        if self.top_prompt_logprobs and self.prompt_logprobs is not True:
            message = f"top_prompt_logprobs needs prompt_logprobs to be true, got {self.top_prompt_logprobs} without"
            raise InvalidRequest(message, param="top_prompt_logprobs")
        if self.stream and self.n_prompt_logprobs is not None:
            raise InvalidRequest("prompt_logprobs is not available when stream is true", param="prompt_logprobs")
        if self.safe_prompt:
            message = "safe_prompt must be false or null, got true: Noria does not add Mistral's guard prompt"
            raise InvalidRequest(f"{message}; write it as part of the prompt", param="safe_prompt")
        if self.prompt_logprobs is True and self.n_choices > 1:
            message = f"prompt_logprobs true needs n to be 1, got {self.n_choices}: each choice would repeat them"
            raise InvalidRequest(message, param="prompt_logprobs")
        if self.truncate_prompt_tokens == 0:
            message = "truncate_prompt_tokens must be at least 1, or -1 for what fits, got 0"
            raise InvalidRequest(message, param="truncate_prompt_tokens")
