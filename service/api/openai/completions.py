"""`POST /v1/completions`: its body, and the route."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from service.access.record import Policy
from service.api.answering import answered
from service.api.call import Answer, Call
from service.api.openai.answer_types import Completion
from service.api.openai.chat import alternatives
from service.api.openai.harmless import HARMLESS_COMPLETION
from service.api.openai.shape import CompletionShape
from service.api.routes import post
from service.api.text import Text, text_request
from service.errors.errors import InvalidRequest
from service.schema.fields import MAX_PROMPTS, Prompts, TokenIds, check_prompts, listed, optional
from service.schema.generation import MAX_CHOICES, GenerationBody
from service.structured.constraint import constraint

DEFAULT_MAX_TOKENS = 16
MAX_SEQUENCES = 1024
MAX_ALTERNATIVES = 5
"""The number of alternatives for each token of a completion: OpenAI's limit."""


class GapBody(GenerationBody):
    """A request to continue prompts, or to fill the gap before a suffix."""

    harmless = HARMLESS_COMPLETION
    suffix: str | None = optional(
        "The text after the answer: the model fills the gap between `prompt` and `suffix`. It needs a model with the "
        "tokens `[SUFFIX]` and `[PREFIX]`."
    )

    def check(self) -> None:
        super().check()
        if self.suffix and self.truncate_prompt_tokens is not None:
            raise self._no_suffix()

    def _no_suffix(self) -> InvalidRequest:
        why = "because the suffix comes before the prompt"
        return InvalidRequest(f"suffix cannot be used with echo or truncate_prompt_tokens, {why}", param="suffix")


class CompletionBody(GapBody):
    """The request body of `POST /v1/completions`."""

    prompt: Prompts = Field(description=f"A string or token ids, or a list of up to {MAX_PROMPTS} of either.")
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
    n_probs: int | None = optional("llama.cpp's number in `logprobs`. 0: no logprobs.", ge=0, le=MAX_ALTERNATIVES)
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

    @property
    def n_logprobs(self) -> int | None:
        return alternatives(self.logprobs, self.top_logprobs, self.n_probs)

    def text(self) -> Text:
        """Return what the body asks. Raises InvalidRequest. Large schemas take time: not for the event loop."""
        max_tokens = self.agreed("max_tokens")
        return Text(
            self.prompts,
            self.suffix,
            replace(self.options, n=self.n_generated),
            DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
            self.n_logprobs,
            constraint(self),
            bool(self.echo),
            self.n_choices,
        )

    def check(self) -> None:
        super().check()
        if self.suffix and self.echo:
            raise self._no_suffix()
        self.check_computed(self.n_logprobs)
        if self.agreed("max_tokens") == 0 and not self.echo:
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
async def completions(call: Call, body: CompletionBody) -> Answer:
    """Continue one or more prompts

    `logprobs` k reports the k likeliest tokens beside each token; 0 reports only the token's own.
    """
    shape = CompletionShape(body, body.n_logprobs is not None)
    served = await call.admitted(body, shape)
    return await answered(call, call.on_lane(lambda: text_request(body.text(), served)), shape)
