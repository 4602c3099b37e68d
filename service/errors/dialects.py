"""The APIs whose errors the server writes: the shape of an error, and the header that may hold a key."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NotRequired

import orjson
from starlette.responses import Response
from typing_extensions import TypedDict

from service.errors.errors import ApiError, ContextExceeded, as_api_error
from service.errors.statuses import FINAL, STATUSES


class OpenAIErrorObject(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(TypedDict):
    """The description of an error. `param` names the field, `code` is for programs."""

    error: OpenAIErrorObject


class AnthropicErrorObject(TypedDict):
    type: str
    message: str
    details: NotRequired[dict[str, Any]]


class AnthropicError(TypedDict):
    """The description of an error, in the shape of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorObject


class OllamaError(TypedDict):
    """The description of an error, in the shape of Ollama's API."""

    error: str


EVENTS, LINES = "text/event-stream", "application/x-ndjson"
"""The media types of streams."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API's conventions. `write` returns the JSON of an error, whose type is `answer`.

    A key may be in `key_header`, and is always accepted in `Authorization`. `stream` is the media type of its streams.
    With `any_type` a body of JSON may have any content type, or none.
    """

    write: Callable[[ApiError], Any]
    answer: type
    key_header: str | None = None
    stream: str = EVENTS
    any_type: bool = False


def _openai(error: ApiError) -> OpenAIError:
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def _anthropic(error: ApiError) -> AnthropicError:
    message = _exceeded(error) if isinstance(error, ContextExceeded) else error.message
    about: AnthropicErrorObject = {"type": STATUSES[error.status].anthropic, "message": message}
    if error.param == "thread":  # Anthropic's tool runner then continues without threads
        about["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": about}


def _exceeded(error: ContextExceeded) -> str:
    """Return Anthropic's words, in which clients find the numbers: they then send less, or compact the conversation."""
    if error.prompt >= error.limit:
        most = min(error.limit, error.prompt - 1)  # a full context leaves no token for the answer
        return f"prompt is too long: {'at least ' * error.bound}{error.prompt} tokens > {most} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {error.prompt} + {error.answer} > {error.limit}, "
        "decrease input length or `max_tokens` and try again"
    )


OPENAI = Dialect(_openai, OpenAIError)
ANTHROPIC = Dialect(_anthropic, AnthropicError, key_header="x-api-key")
OLLAMA = Dialect(lambda error: {"error": error.message}, OllamaError, stream=LINES, any_type=True)
SHARED = replace(OPENAI, key_header=ANTHROPIC.key_header)
"""OpenAI's conventions, on endpoints that Anthropic's clients call too."""


def error_response(error: Exception, dialect: Dialect) -> Response:
    """Return the response to a request that failed before its stream began."""
    failure = as_api_error(error)
    retry = {"x-should-retry": "false"} if failure.status in FINAL else {}
    return Response(orjson.dumps(dialect.write(failure)), failure.status, failure.headers | retry, "application/json")
