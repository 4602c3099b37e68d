"""Fields of requests for text in OpenAI's words. Unknown fields are refused by name; null means the default.

Fields of OpenAI and of other servers that mean nothing here pass while they hold a value that describes what
happens anyway (`harmless.py`). Everything else that is not a field is a 400.
"""

from dataclasses import dataclass, fields

from service.http.errors import InvalidRequest
from service.schema.fields import Body, only, optional, ranged
from service.schema.sampling import SamplingBody
from service.schema.structured_output import StructuredOutputBody

MAX_CHOICES = 128
MAX_SALT = 1024
MAX_TIMEOUT = 86400.0
MAX_USER = 512


class StreamOptions(Body):
    harmless = only(include_obfuscation=(False,))
    include_usage: bool | None = optional("A last chunk with `usage`, and `usage: null` in all others.")
    continuous_usage_stats: bool | None = optional("`usage` so far in every chunk.")


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How a request is served and reported, whatever it generates; named as in `GenerationBody`.

    `prompt_logprobs` is the number of alternatives beside each token of the prompt (None: no logprobs), `timeout` the
    seconds from the request's arrival.
    """

    prompt_logprobs: int | None = None
    return_progress: bool = False
    return_token_ids: bool = False
    truncate_prompt_tokens: int | None = None
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None


class GenerationBody(SamplingBody, StructuredOutputBody):
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
    def options(self) -> RequestOptions:
        values = {field.name: getattr(self, field.name) for field in fields(RequestOptions)}
        return RequestOptions(**{name: value for name, value in values.items() if value is not None})

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
