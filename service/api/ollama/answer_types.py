"""Answers of Ollama's API, as types. Durations are in nanoseconds."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from service.generation.usage import Timings
from service.receipts.receipt import Signed
from service.schema.fields import Json


class TokenChance(TypedDict):
    """`bytes` is empty for a control token. Only a token of the answer has `top_logprobs`."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: NotRequired["list[TokenChance]"]


class AnswerLine(Signed):
    """The fields of the answers of chats and of other generations, and of each line of their streams.

    A whole answer and the last line have the fields from `done_reason` to `timings`. `load_duration` is the wait for
    the model. The answer to a request without a prompt has `done_reason` alone, "load" or "unload".
    """

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[Literal["stop", "length", "load", "unload"]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
    timings: NotRequired[Timings]
    logprobs: NotRequired[list[TokenChance]]


class MadeFunction(TypedDict):
    index: int
    name: str
    arguments: Json


class MadeCall(TypedDict):
    id: str
    function: MadeFunction


class ChatContent(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[MadeCall]]


class ChatAnswer(AnswerLine):
    """The answer of `POST /api/chat`, and each line of its stream."""

    message: ChatContent


class GeneratedAnswer(AnswerLine):
    """The answer of `POST /api/generate`, and each line of its stream."""

    response: str
    thinking: NotRequired[str]


class Embedded(TypedDict):
    """The answer of `POST /api/embed`."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddedOne(TypedDict):
    """The answer of `POST /api/embeddings`."""

    embedding: list[float]


class ModelDetails(TypedDict):
    """The facts in the files of a model. The texts are empty for a model that is not loaded."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    """A model. `size` is that of its files in bytes; 0: it is not loaded. `digest` names the model, not its weights.

    `GET /api/tags` gives `modified_at`. `GET /api/ps` gives the other optional fields; `size_vram` is the memory that
    is reserved for the model, 0 on a server with one model.
    """

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    modified_at: NotRequired[str]
    expires_at: NotRequired[str]
    size_vram: NotRequired[int]
    context_length: NotRequired[int]


class OllamaModels(TypedDict):
    """The answer of `GET /api/tags` and of `GET /api/ps`."""

    models: list[OllamaModel]


class ShownModel(TypedDict):
    """The answer of `POST /api/show`. `parameters` are the model's own defaults, a line for each."""

    modified_at: str
    template: str
    parameters: str
    details: ModelDetails
    model_info: Json
    capabilities: list[str]


class ApiVersion(TypedDict):
    """`version` is that of Ollama's API, which clients compare. `noria` is the server's own."""

    version: str
    noria: str
