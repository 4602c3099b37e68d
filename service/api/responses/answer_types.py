"""The answer of the Responses API, as a type."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from service.generation.finish import FINISHES
from service.generation.usage import Timings
from service.receipts.receipt import Signed

ItemStatus = Annotated[str, WithJsonSchema({"enum": ["completed", "incomplete"]})]
"""The status of an item. In events it may also be "in_progress"."""

ResponseStatus = Annotated[
    str, WithJsonSchema({"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]})
]


class TokenScore(TypedDict):
    """A token with its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class TextScore(TokenScore):
    top_logprobs: list[TokenScore]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TextScore]


class OutputMessage(TypedDict):
    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class FunctionCall(TypedDict):
    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: NotRequired[str]
    arguments: str


class ThoughtText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class AnsweredThought(TypedDict):
    """The thought before an answer. It is not encrypted, and the summary is always empty."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ThoughtText]
    encrypted_content: None


class CustomCall(TypedDict):
    """The call of a custom tool."""

    type: Literal["custom_tool_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str


OutputItem = AnsweredThought | OutputMessage | FunctionCall | CustomCall


class InputTokensDetails(TypedDict):
    cached_tokens: int
    image_tokens: int
    audio_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(TypedDict):
    reason: Annotated[str, WithJsonSchema({"enum": [row.responses for row in FINISHES.values() if row.responses]})]


class ReasoningEcho(TypedDict):
    effort: str | None
    summary: str | None


class AnswerTextFormat(TypedDict):
    format: dict[str, Any]


class ConversationEcho(TypedDict):
    id: str


class ResponseError(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class RequestEcho(TypedDict):
    """The fields of a response that repeat its request, with the defaults that took effect."""

    background: bool
    conversation: ConversationEcho | None
    error: ResponseError | None
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: AnswerTextFormat
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None


class ResponseState(RequestEcho):
    """A response as events have it, from its beginning to its end."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None


class StoredResponse(ResponseState, Signed):
    """A response as the store has it."""


class ResponseAnswer(StoredResponse):
    """The answer of `POST /v1/responses`. It has no `timings` while it is queued, in the background."""

    timings: NotRequired[Timings]


class CountedInput(TypedDict):
    """The answer of `POST /v1/responses/input_tokens`."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class CompactedResponse(TypedDict):
    """The answer of `POST /v1/responses/compact`: the user's messages, and a summary of all."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage
