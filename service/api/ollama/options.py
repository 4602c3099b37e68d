"""The fields that requests of Ollama's API share: `keep_alive`, options, format, thoughts and logprobs."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, create_model

from model.chat.reasoning import Effort
from model.sampling_params import PARAMETERS
from service.api.openai.chat import alternatives
from service.api.openai.models import check_keep_alive
from service.api.reasoning import ReasoningOptions
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel
from service.schema.fields import CHANGING, Body, Json, ModelBody, expect, limits_of, only, optional, ranged
from service.schema.generation import Stops, StreamBody
from service.schema.options import Options, given
from service.structured.constraint import Constraint, object_constraint

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
"""Sampling parameters that are options, too."""
NAMES = {name: "repeat_penalty" if name == "repetition_penalty" else name for name in SAMPLING}
"""Sampling parameter -> Ollama's name of it."""
MACHINE = ("num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread")
"""Options that say how Ollama runs a model, as numbers."""


def _whole(value: Any) -> Any:
    """Return the integer that a client such as Home Assistant writes as 8192.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]
Format = Annotated[Literal["", "json"] | Json, expect('"json" or a JSON schema')]
KINDS: dict[Any, Any] = {int: Whole, float: float}
if TYPE_CHECKING:
    TableOptions = Body
else:
    TableOptions = create_model(
        "TableOptions",
        __base__=Body,
        **{NAMES[name]: (KINDS[PARAMETERS[name].kind] | None, ranged(name)) for name in SAMPLING},
        **dict.fromkeys(MACHINE, (Whole | None, optional("How Ollama runs a model. It has no effect."))),
    )


class OllamaOptions(TableOptions):
    """The options of Ollama's models."""

    changing = CHANGING
    harmless = only(
        tfs_z=(1, 1.0),
        **dict.fromkeys(("embedding_only", "logits_all", "vocab_only"), (False,)),
        mirostat=(0,),
        mirostat_tau=(5, 5.0),
        mirostat_eta=(0.1,),
        penalize_newline=(True,),
    )
    noticed = only(
        **dict.fromkeys(("num_ctx", "repeat_last_n", "typical_p", *MACHINE), ()),
        **dict.fromkeys(("numa", "low_vram", "f16_kv", "use_mmap", "use_mlock"), (True, False)),
    )
    num_ctx: Whole | None = optional(
        "The number of tokens of prompt and answer, which is at most the model's context. A smaller one has no effect.",
        ge=0,
    )
    num_predict: Whole | None = optional(
        "The maximum number of generated tokens; 0 or less: what the prompt leaves of the context, which is the "
        "default.",
        ge=-2,
        le=limits_of("max_tokens")["le"],
    )
    repeat_last_n: Whole | None = optional("It has no effect: penalties count all tokens, as Ollama's -1 does.", ge=-1)
    typical_p: float | None = optional("It has no effect.", ge=0, le=1)
    seed: Whole | None = ranged(
        "seed", "The same request with the same seed gives the same tokens. Below 0, which is the default: random."
    )
    stop: Stops | None = optional("Strings that end the text; it ends before them.")

    @property
    def max_tokens(self) -> int | None:
        """Return the limit of tokens; None: what the prompt leaves of the context."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None

    @property
    def plain(self) -> Options:
        """Return the options in the terms of all APIs."""
        seed = None if self.seed is None or self.seed < 0 else self.seed
        sampling = given(seed=seed, **{name: getattr(self, own) for name, own in NAMES.items()})
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Options(sampling, stops=stops)

    def check_context(self, served: ServedModel) -> None:
        """Raise InvalidRequest if the model's context is smaller than the request needs."""
        context = served.info.max_model_len
        if self.num_ctx is not None and self.num_ctx > context:
            name = "options.num_ctx"
            raise InvalidRequest(f"{name} must be at most the context of {context}, got {self.num_ctx}", param=name)


class KeepingBody(ModelBody):
    """A request to a model that may say how long the model stays loaded."""

    noticed = only(ttl=())
    keep_alive: str | float | None = optional(
        "How long the model stays loaded after the request: seconds, 10m, or -1 for ever; 0: it is unloaded then. It "
        "has no effect on a server with one model, or for a key that may not load models."
    )
    options: OllamaOptions | None = optional("Options of sampling.")

    def check(self) -> None:
        if self.keep_alive is not None:
            check_keep_alive(self.keep_alive)


class AnswerBody(KeepingBody, StreamBody):
    """The fields that requests of chats and of other generations share."""

    harmless = only(truncate=(False,), shift=(False,))
    noticed = only(**KeepingBody.noticed, num_predict=())
    stream: bool | None = optional("false: one answer, as JSON. Default: true, lines of JSON.")
    format: Format | None = optional('The format of the answer: "json", or a JSON schema. Default: text.')
    think: bool | Effort | None = optional(
        "Whether the model thinks, or how long. Default: the model decides. It has no effect on a model without "
        "reasoning."
    )
    num_predict: Whole | None = optional("It has no effect here, as in Ollama: it is one of the options.")
    logprobs: bool | None = optional("Report the logprob of each token.")
    top_logprobs: int | None = optional("The number of alternatives for each token. It needs `logprobs`.", ge=0, le=20)

    @property
    def n_logprobs(self) -> int | None:
        """Return the number of alternatives for each token (None: no logprobs). Raises InvalidRequest."""
        return alternatives(self.logprobs, self.top_logprobs, None)

    @property
    def missing_to_resume(self) -> str:
        return "stream true" if self.stream is False else "" if self.has_prompt else "a prompt"

    @property
    def has_prompt(self) -> bool:
        """Return whether there is anything to answer."""
        raise NotImplementedError

    @property
    def chosen(self) -> OllamaOptions:
        return self.options or OllamaOptions()

    @property
    def reasoning(self) -> ReasoningOptions:
        if isinstance(self.think, str):
            return ReasoningOptions.of_effort(self.think, "think")
        return ReasoningOptions(self.think, field="think")

    @property
    def constraint(self) -> Constraint | None:
        """Return the constraint of `format`. Raises InvalidRequest."""
        if self.format in (None, ""):
            return None
        return object_constraint(self.format if isinstance(self.format, dict) else None, "format")

    def check(self) -> None:
        super().check()
        self.check_computed(self.n_logprobs)
