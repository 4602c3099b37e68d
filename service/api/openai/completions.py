"""`POST /v1/completions`: its body, the route, and prompts as token ids with what `echo` needs."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, NamedTuple

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from model.errors import quoted
from model.sampling_params import SamplingParams
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import encode_inner
from service.access.record import Policy
from service.api.openai.answers import Completion
from service.api.openai.chat import alternatives
from service.api.openai.harmless import HARMLESS_COMPLETION
from service.api.openai.shape import CompletionShape
from service.api.prompt import check_prompt, check_size, encode_text, enforceable, n_begin_tokens, on_thread, truncated
from service.api.resuming import answer_resumable
from service.api.routes import post
from service.errors.errors import InvalidRequest
from service.generation.request import ModelRequest, Prompt, ServedModel, sampling, submit_of
from service.generation.text import TextStream
from service.schema.fields import MAX_PROMPTS, Prompts, TokenIds, check_prompts, listed, optional
from service.schema.generation import MAX_CHOICES, GenerationBody
from service.structured.constraint import Constraint, constraint

DEFAULT_MAX_TOKENS = 16
MAX_SEQUENCES = 1024
MAX_ALTERNATIVES = 5
"""The number of alternatives for each token of a completion: OpenAI's limit."""


class GapBody(GenerationBody):
    """A request to continue prompts, or to fill the gap before a suffix. The properties are those of fewest fields."""

    harmless = HARMLESS_COMPLETION
    default_max_tokens: ClassVar[int | None] = None
    """None: what the prompt leaves of the context."""
    max_tokens_field: ClassVar[str] = "max_tokens"
    suffix: str | None = optional(
        "The text after the answer: the model fills the gap between `prompt` and `suffix`. It needs a model with the "
        "tokens `[SUFFIX]` and `[PREFIX]`."
    )

    @property
    def echoes(self) -> bool:
        return False

    @property
    def n_generated(self) -> int:
        return self.n_choices

    @property
    def n_logprobs(self) -> int | None:
        """The number of alternatives for each token (None: no logprobs)."""
        return None

    @property
    def prompts(self) -> list[str] | list[TokenIds]:
        raise NotImplementedError

    @property
    def constraint(self) -> Constraint | None:
        """The structured output. Raises InvalidRequest."""
        return constraint(self)

    def check(self) -> None:
        super().check()
        if self.suffix and (self.echoes or self.truncate_prompt_tokens is not None):
            message = (
                "suffix cannot be used with echo or truncate_prompt_tokens, because the suffix comes before the prompt"
            )
            raise InvalidRequest(message, param="suffix")


class CompletionBody(GapBody):
    """The request body of `POST /v1/completions`."""

    default_max_tokens = DEFAULT_MAX_TOKENS
    prompt: Prompts = Field(
        description=f"A string, a list of strings, token ids, or a list of token ids. At most {MAX_PROMPTS} prompts."
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
    def echoes(self) -> bool:
        return bool(self.echo)

    @property
    def n_generated(self) -> int:
        return self.best_of or self.n_choices

    @property
    def prompts(self) -> list[str] | list[TokenIds]:
        return listed(self.prompt)

    @property
    def n_logprobs(self) -> int | None:
        return alternatives(self.logprobs, self.top_logprobs, self.n_probs)

    def check(self) -> None:
        super().check()
        self.n_logprobs  # noqa: B018 - it raises
        if self.agreed("max_tokens") == 0 and not self.echoes:
            name = self.given_as("max_tokens")
            raise InvalidRequest(f"{name} must be at least 1 unless echo is true, got 0", param=name)
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
        if self.suffix and not isinstance(self.prompts[0], str):
            raise InvalidRequest("suffix needs a prompt of text, got token ids", param="suffix")


@post(
    "/v1/completions",
    body=CompletionBody,
    request={"prompt": "The capital of France is", "max_tokens": 8},
    answer=Completion,
    policy=Policy(operation="text_completion", resumes=True),
)
async def completions(request: Request, body: CompletionBody) -> Response:
    """Continue one or more prompts

    `logprobs` k reports the k likeliest tokens beside each token; 0 reports only the token's own.
    """
    return await answer_resumable(
        request,
        body,
        on_thread(lambda served: completion_request(body, served)),
        lambda served, name: CompletionShape(
            name,
            served.tokenizer,
            served.fingerprint,
            body.n_logprobs is not None,
            body.streaming,
            bool(body.return_token_ids),
            body.metadata,
        ),
    )


def completion_request(body: GapBody, served: ServedModel) -> ModelRequest:
    """The engine's request. Raises ParameterError or InvalidRequest. It tokenizes: not for the event loop."""
    given: int | None = body.agreed("max_tokens")
    max_tokens, n_logprobs = body.default_max_tokens if given is None else given, body.n_logprobs
    grammar, fields = enforceable(body.constraint, served)
    encoded = [_encoded(prompt, body, 1 if max_tokens is None else max_tokens, served) for prompt in body.prompts]
    ranked = body.n_generated > body.n_choices
    scored = (body.n_prompt_logprobs, n_logprobs if body.echoes else None)
    params = sampling(
        body,
        served,
        max_tokens=_what_is_left(encoded, served) if max_tokens is None else max_tokens,
        logprobs=0 if ranked and n_logprobs is None else n_logprobs,
        prompt_logprobs=max((count for count in scored if count is not None), default=None),
        grammar=grammar,
        return_progress=bool(body.return_progress),
    )
    return ModelRequest(
        tuple(_prompt(item, body, params, served) for item in encoded),
        n_best=body.n_choices,
        timeout=body.timeout,
        return_token_ids=bool(body.return_token_ids),
        scores_end=True,
        prompt_logprobs=body.n_prompt_logprobs,
        stop_token_ids=body.stop_token_ids or (),
        grammar_fields=fields,
    )


class Encoded(NamedTuple):
    """A prompt as tokens. The first `n_begin` are not in the text; `text` is None for one that was cut or had none."""

    tokens: list[int]
    n_begin: int
    text: str | None


def _what_is_left(prompts: Sequence[Encoded], served: ServedModel) -> int:
    """The number of tokens that the longest prompt leaves of the context."""
    return served.info.max_model_len - max(len(prompt.tokens) for prompt in prompts)


def _encoded(prompt: str | list[int], body: GapBody, max_tokens: int, served: ServedModel) -> Encoded:
    """The prompt, cut if the request wants it, with a place for `max_tokens` tokens after it."""
    whole = _spelled(prompt, body.suffix, served) if isinstance(prompt, str) else prompt
    n_begin = n_begin_tokens(whole, served.tokenizer) if isinstance(prompt, str) else 0
    tokens = truncated(whole, n_begin, body.truncate_prompt_tokens, max_tokens, served)
    check_prompt(tokens, max_tokens, served, limit_param=body.max_tokens_field)
    return Encoded(tokens, n_begin, prompt if isinstance(prompt, str) and len(tokens) == len(whole) else None)


def _prompt(encoded: Encoded, body: GapBody, params: SamplingParams, served: ServedModel) -> Prompt:
    """One prompt with its parameters."""
    tokens, n_begin, text = encoded
    submit = submit_of(tokens, params, body, served, n=body.n_generated)
    if not body.echoes:
        return Prompt(submit)
    if text is None:
        text = served.tokenizer.decode(tokens[n_begin:], keep_control=True)
    return Prompt(submit, text, () if body.n_logprobs is None else _starts(tokens, n_begin, text, served.tokenizer))


def fills_gaps(tokenizer: Tokenizer) -> bool:
    """Whether it has the tokens that stand before the two sides of a gap."""
    return {"[SUFFIX]", "[PREFIX]"} <= tokenizer.control.keys()


def _spelled(prompt: str, suffix: str | None, served: ServedModel) -> list[int]:
    """Token ids of a prompt. A suffix comes before it, as in mistral-common's fill-in-the-middle."""
    if not suffix:
        return encode_text(served, prompt)
    check_size([prompt, suffix], "suffix", served)
    tokenizer = served.tokenizer
    if not fills_gaps(tokenizer):
        message = (
            f"suffix needs a model with the tokens [SUFFIX] and [PREFIX]; this model has none, got {quoted(suffix)}"
        )
        raise InvalidRequest(message, param="suffix")
    return [
        *tokenizer.encode("", add_bos=True, parse_control=True),
        tokenizer.control["[SUFFIX]"],
        *encode_inner(tokenizer, suffix),
        tokenizer.control["[PREFIX]"],
        *tokenizer.encode(prompt, add_bos=False, parse_control=False),
    ]


def _starts(tokens: list[int], n_begin: int, text: str, tokenizer: Tokenizer) -> list[int]:
    """The index in `text` at which each token starts. The first `n_begin` tokens are not in the text: 0."""
    stream = TextStream(tokenizer, strip_leading_space=tokenizer.strips_leading_space, keep_control=True)
    for token in tokens[n_begin:]:
        stream.push(token)
    return [0] * n_begin + [min(start, len(text)) for start in stream.take(final=True).starts]
