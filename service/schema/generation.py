"""Fields that completion and chat requests share, with OpenAI's names. null means the default."""

from types import MappingProxyType

from service.access.keys.entry import PRIORITIES
from service.errors.errors import InvalidRequest
from service.schema.fields import MODEL, Body, limits_of, only, optional, ranged, synonym
from service.schema.sampling import SamplingBody
from service.schema.structured_output import StructuredOutputBody

MAX_CHOICES = 128
MAX_SALT = 1024
MAX_TIMEOUT = 86400.0
MAX_USER = 512


class StreamOptions(Body):
    harmless = only(include_obfuscation=(False,))
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
        """Whether every chunk has the usage so far."""
        return bool(self.continuous_usage_stats) and self.ends_with_usage


class GenerationBody(SamplingBody, StructuredOutputBody):
    """The fields that completions and chat share. None: the model's default, or the server's."""

    synonyms = MappingProxyType({**SamplingBody.synonyms, **StructuredOutputBody.synonyms, "n_predict": "max_tokens"})
    model: str | None = optional(MODEL)
    n: int | None = optional(
        "The number of choices for each prompt. `n` times the number of prompts is at most 1024. Default: 1.",
        ge=1,
        le=MAX_CHOICES,
    )
    stream: bool | None = optional("Send the answer as server-sent events while it is generated.")
    stream_options: StreamOptions | None = optional("Options of the stream. Allowed only when `stream` is true.")
    return_progress: bool | None = optional(
        "Send chunks with `prompt_progress` during prefill. Allowed only when `stream` is true."
    )
    max_tokens: int | None = ranged(
        "max_tokens",
        "The maximum number of generated tokens. Prompt and answer together must fit the context. Default: 16.",
    )
    n_predict: int | None = synonym("max_tokens", "llama.cpp's", **limits_of("max_tokens"))
    prompt_logprobs: int | None = ranged(
        "prompt_logprobs",
        "Report the logprob of each prompt token, with this many alternatives. Not allowed with `stream`.",
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
    user: str | None = optional("The end user. The log has a hash of it.", max_length=MAX_USER)
    safety_identifier: str | None = optional("The end user. It takes precedence over `user`.", max_length=MAX_USER)

    @property
    def n_prompts(self) -> int:
        return 1

    @property
    def n_choices(self) -> int:
        return self.n or 1

    @property
    def end_user(self) -> str | None:
        """The client's name for its end user."""
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
