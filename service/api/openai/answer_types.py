"""Answers of completions, chat and models, as types."""

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from service.generation.finish import FINISHES
from service.generation.usage import Timings
from service.observe.view.feed import ModelState
from service.receipts.receipt import Signed
from service.schema.fields import Json

FinishReason = Annotated[str | None, WithJsonSchema({"enum": [*FINISHES]})]
"""It is None only in the chunks of a stream."""


class PromptTokensDetails(TypedDict):
    """`image_tokens` are all positions of images, with those that end their rows, `audio_tokens` those of audio."""

    cached_tokens: int
    image_tokens: int
    audio_tokens: int


class CompletionTokensDetails(TypedDict):
    """`reasoning_tokens` are the tokens of thoughts, with their marks."""

    reasoning_tokens: int


class TokenUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class PromptLogprob(TypedDict):
    logprob: float | None
    rank: int | None
    decoded_token: str


PromptLogprobs = Sequence[dict[str, PromptLogprob] | None]
"""Logprobs by token id, for each token of the prompt; None for the first token."""


class AnswerHead(TypedDict):
    """The first fields of every object of an answer."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    prompt_token_ids: NotRequired[Sequence[int] | None]
    token_ids: NotRequired[Sequence[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class Completion(AnswerHead, Signed):
    """The answer of `POST /v1/completions`."""

    choices: list[CompletionChoice]
    usage: TokenUsage
    timings: Timings
    metadata: NotRequired[Json]


class ChatTokenLogprob(TypedDict):
    """`bytes` is empty for a control token."""

    token: str
    token_id: int
    logprob: float | None
    bytes: list[int]
    top_logprobs: NotRequired["list[ChatTokenLogprob]"]


class ChatLogprobs(TypedDict):
    content: list[ChatTokenLogprob]
    refusal: None


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class TextChunk(TypedDict):
    type: Literal["text"]
    text: str


class ThinkingChunk(TypedDict):
    """A thought as Mistral's API has it."""

    type: Literal["thinking"]
    thinking: list[TextChunk]


class ChatMessage(TypedDict):
    """The content is a list only with a thought and the `reasoning_format` mistral."""

    role: Literal["assistant"]
    content: str | list[ThinkingChunk | TextChunk]
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class PromptTokens(TypedDict):
    """All tokens of a prompt but the first, as Mistral's API has them."""

    content: list[ChatTokenLogprob]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: ChatLogprobs | None
    token_ids: NotRequired[Sequence[int]]
    prompt_logprobs: NotRequired[PromptTokens]


class ChatCompletion(AnswerHead, Signed):
    """The answer of `POST /v1/chat/completions` and of `POST /v1/fim/completions`."""

    choices: list[ChatChoice]
    usage: TokenUsage
    timings: Timings
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[Sequence[int] | None]
    metadata: NotRequired[Json]


class Capabilities(TypedDict):
    """The parts that requests to the model may have: messages, tools, budgets for thoughts, images, audio, a `suffix`.

    `completion_chat`, `function_calling` and `completion_fim` are Mistral's names.
    """

    chat: bool
    tools: bool
    reasoning: bool
    vision: bool
    audio: bool
    completion_chat: bool
    function_calling: bool
    completion_fim: bool


class ModelStatus(TypedDict):
    """Whether a model is loaded. `memory_bytes` is what it takes by its plan; null on a server with one model.

    `stage` and `progress` (0 to 1) describe loading, `reason` is why it failed."""

    state: ModelState
    pinned: bool
    memory_bytes: int | None
    stage: NotRequired[str]
    progress: NotRequired[float]
    reason: NotRequired[str]


class ModelFacts(TypedDict):
    """A model as vLLM, Mistral and Anthropic describe it, and how it is run. `type` is "model" for requests with the
    header `anthropic-version`, else "base": Mistral's clients read no other. `window`: of attention, in tokens; null is
    full attention, and a list has the windows of layers that differ. `defaults`: the sampling of a request that does
    not set it. `root` is the model itself. `adapters` are the ids of its LoRA adapters, whose `parent` it is.
    `description` is what users should know of the model. A model that is not loaded has no facts of its files."""

    id: str
    object: Literal["model"]
    created: int
    type: Literal["base", "model"]
    display_name: str
    description: NotRequired[str | None]
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: NotRequired[int]
    max_tokens: NotRequired[int]
    owned_by: str
    root: str
    parent: str | None
    max_model_len: NotRequired[int]
    max_context_length: NotRequired[int]
    window: NotRequired[int | list[int | None] | None]
    quantization: NotRequired[str | None]
    adapters: list[str]
    defaults: NotRequired[dict[str, float]]
    capabilities: NotRequired[Capabilities]


class ModelCard(ModelFacts, ModelStatus):
    """A model, and whether it is loaded."""


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False]
