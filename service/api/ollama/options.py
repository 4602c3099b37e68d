"""What requests of Ollama's API share: the model's name and stay in memory, options, thoughts and logprobs."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from model.chat.reasoning import Effort
from service.api.openai.chat import alternatives
from service.api.openai.models import check_keep_alive
from service.api.reasoning import ReasoningOptions
from service.errors.errors import InvalidRequest
from service.generation.request import ServedModel
from service.schema.fields import CHANGING, Body, Json, ModelBody, expect, limits_of, only, optional, ranged
from service.schema.generation import GenerationBody, Stops, StreamBody
from service.structured.constraint import Constraint, json_constraint, object_constraint

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "stop",
)
"""Options that are fields of `GenerationBody`, too."""
MACHINE = "How Ollama runs a model. It has no effect."


def _whole(value: Any) -> Any:
    """The integer that a client writes as 8192.0: Home Assistant does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]
Format = Annotated[Literal["", "json"] | Json, expect('"json" or a JSON schema')]


class Options(Body):
    """The options of Ollama's models."""

    changing = CHANGING
    harmless = only(
        repeat_last_n=(-1,),
        tfs_z=(1, 1.0),
        typical_p=(1, 1.0),
        mirostat=(0,),
        mirostat_tau=(5, 5.0),
        mirostat_eta=(0.1,),
        penalize_newline=(True,),
        embedding_only=(False,),
        logits_all=(False,),
        vocab_only=(False,),
    )
    noticed = only(
        **dict.fromkeys(("num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread"), ()),
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
    temperature: float | None = ranged("temperature")
    top_p: float | None = ranged("top_p")
    top_k: Whole | None = ranged("top_k")
    min_p: float | None = ranged("min_p")
    presence_penalty: float | None = ranged("presence_penalty")
    frequency_penalty: float | None = ranged("frequency_penalty")
    repeat_penalty: float | None = ranged("repetition_penalty")
    seed: Whole | None = ranged(
        "seed", "The same request with the same seed gives the same tokens. Below 0, which is the default: random."
    )
    stop: Stops | None = optional("Strings that end the text; it ends before them.")
    num_keep: Whole | None = optional(MACHINE)
    num_batch: Whole | None = optional(MACHINE)
    num_gpu: Whole | None = optional(MACHINE)
    main_gpu: Whole | None = optional(MACHINE)
    num_thread: Whole | None = optional(MACHINE)

    @property
    def max_tokens(self) -> int | None:
        """None: what the prompt leaves of the context."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `GenerationBody`."""
        seed = None if self.seed is None or self.seed < 0 else self.seed
        return {"seed": seed, "max_tokens": self.max_tokens} | {name: getattr(self, name) for name in SAMPLING}

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
    options: Options | None = optional("Options of sampling.")

    def check(self) -> None:
        if self.keep_alive is not None:
            check_keep_alive(self.keep_alive)


class AnswerBody(KeepingBody, StreamBody):
    """What requests of chats and of other generations have in common."""

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
        """The number of alternatives for each token (None: no logprobs). Raises InvalidRequest."""
        return alternatives(self.logprobs, self.top_logprobs, None)

    @property
    def chosen(self) -> Options:
        return self.options or Options()

    @property
    def fields(self) -> GenerationBody:
        """What the options say in OpenAI's words."""
        return GenerationBody.model_construct(**self.chosen.fields)

    @property
    def reasoning(self) -> ReasoningOptions:
        if isinstance(self.think, str):
            return ReasoningOptions.of_effort(self.think, "think")
        return ReasoningOptions(self.think, field="think")

    @property
    def constraint(self) -> Constraint | None:
        """The constraint of `format`. Raises InvalidRequest."""
        if isinstance(self.format, dict):
            return json_constraint(self.format, "format")
        return object_constraint(None, "format") if self.format else None

    def check(self) -> None:
        super().check()
        self.n_logprobs  # noqa: B018 - it raises
