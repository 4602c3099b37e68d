"""Answers of completions, chat and models, as types, with an example of each."""

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from service.api.examples import ARGUMENTS, FINGERPRINT, MODEL, TIMINGS
from service.generation.finish import FINISHES
from service.generation.usage import Timings

FinishReason = Annotated[str | None, WithJsonSchema({"enum": [*FINISHES]})]
"""None only in the chunks of a stream."""


class PromptTokensDetails(TypedDict):
    """`image_tokens` are all positions of images, with those that end their rows."""

    cached_tokens: int
    image_tokens: int


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
    """What every object of an answer begins with."""

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


class Completion(AnswerHead):
    """The answer of `POST /v1/completions`."""

    choices: list[CompletionChoice]
    usage: TokenUsage
    timings: Timings


class ChatTokenLogprob(TypedDict):
    token: str
    logprob: float | None
    bytes: list[int] | None
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


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: ChatLogprobs | None
    token_ids: NotRequired[Sequence[int]]


class ChatCompletion(AnswerHead):
    """The answer of `POST /v1/chat/completions`."""

    choices: list[ChatChoice]
    usage: TokenUsage
    timings: Timings
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[Sequence[int] | None]


class Capabilities(TypedDict):
    """What requests to the model may contain: messages and tools, budgets for thoughts, images."""

    chat: bool
    tools: bool
    reasoning: bool
    vision: bool


class ModelCard(TypedDict):
    """A model as vLLM and Anthropic describe it, and how it is run. `window`: of attention, in tokens; null is full
    attention, and a list has the windows of layers that differ. `defaults`: the sampling of a request that does not set
    it. `root` is the model itself. `adapters` are the ids of its LoRA adapters, whose `parent` it is.
    `description` is what users should know of the model."""

    id: str
    object: Literal["model"]
    created: int
    type: Literal["model"]
    display_name: str
    description: str | None
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    window: int | list[int | None] | None
    quantization: str | None
    adapters: list[str]
    defaults: dict[str, float]
    capabilities: Capabilities


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]
    first_id: str
    last_id: str
    has_more: Literal[False]


USAGE: TokenUsage = {
    "prompt_tokens": 31,
    "completion_tokens": 2,
    "total_tokens": 33,
    "prompt_tokens_details": {"cached_tokens": 0, "image_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
COMPLETION: Completion = {
    "id": "cmpl-1b9d",
    "object": "text_completion",
    "created": 1760000000,
    "model": MODEL,
    "system_fingerprint": FINGERPRINT,
    "choices": [{"index": 0, "text": " Paris.", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
    "usage": USAGE,
    "timings": TIMINGS,
}


def _chat(finish: str, message: ChatMessage) -> ChatCompletion:
    choice: ChatChoice = {
        "index": 0,
        "message": message,
        "finish_reason": finish,
        "stop_reason": None,
        "logprobs": None,
    }
    return {**COMPLETION, "id": "chatcmpl-1b9d", "object": "chat.completion", "choices": [choice]}


CHAT = _chat("stop", {"role": "assistant", "content": "Hello!", "refusal": None})
CALL: ToolCall = {
    "id": "call_1b9d",
    "type": "function",
    "function": {"name": "weather", "arguments": ARGUMENTS},
}
CHAT_CALL = _chat("tool_calls", {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]})
CARD: ModelCard = {
    "id": MODEL,
    "object": "model",
    "created": 1760000000,
    "type": "model",
    "display_name": MODEL,
    "description": None,
    "created_at": "2025-10-09T08:53:20+00:00",
    "lifecycle": "active",
    "max_input_tokens": 8192,
    "max_tokens": 8192,
    "owned_by": "noria",
    "root": MODEL,
    "parent": None,
    "max_model_len": 8192,
    "window": None,
    "quantization": "int8",
    "adapters": [],
    "defaults": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
    "capabilities": {"chat": True, "tools": True, "reasoning": False, "vision": False},
}
LISTED: ModelList = {"object": "list", "data": [CARD], "first_id": MODEL, "last_id": MODEL, "has_more": False}
