"""Errors that reach a client: OpenAI's shape (Anthropic's on its endpoint), status codes and names.

Messages leak no path and no traceback.

ApiError
├── InvalidRequest     400  a field outside its range, an unknown field, malformed JSON
├── Unauthorized       401  no key, or not one of ours
├── ModelNotFound      404  a model that is not served here
├── BodyTooLarge       413
├── Overloaded         429  the queue is full
└── Unavailable        503  loading, restarting or draining
"""

import logging
import reprlib
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from model.errors import ParameterError
from service.engine.mailbox import EngineDied, EngineUnavailable

log = logging.getLogger("noria.api")

SHOWN_CHARS = 80
ANTHROPIC_PATH = "/v1/messages"
ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """What a client is told. `param` names the field at fault, `code` is for programs."""

    status = 500
    type = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class Unauthorized(ApiError):
    status = 401
    type = "invalid_request_error"

    def __init__(self) -> None:
        super().__init__(
            "a valid API key is required: send it as 'Authorization: Bearer KEY' (/v1/messages: or 'x-api-key: KEY')",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


class ModelNotFound(ApiError):
    status = 404
    type = "invalid_request_error"

    def __init__(self, name: str, served: tuple[str, ...]) -> None:
        message = f"the model {shown(name)} does not exist here; served: {', '.join(served)}"
        super().__init__(message, param="model", code="model_not_found")


class BodyTooLarge(ApiError):
    status = 413
    type = "invalid_request_error"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request body is larger than {limit} bytes", code="request_too_large")


class Overloaded(ApiError):
    status = 429
    type = "rate_limit_error"

    def __init__(self, limit: int) -> None:
        message = f"the server is full: {limit} requests are running or waiting; try again later"
        super().__init__(message, code="queue_full", headers={"retry-after": "1"})


class Unavailable(ApiError):
    status = 503
    type = "service_unavailable_error"

    def __init__(self, message: str, code: str, retry_after: int = 2) -> None:
        super().__init__(message, code=code, headers={"retry-after": str(retry_after)})


class HttpError(ApiError):
    """An error of the routing itself (404, 405) or one without a class of its own (415)."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        names = {404: "not_found", 405: "method_not_allowed", 415: "unsupported_media_type"}
        super().__init__(message, code=names.get(status), headers=headers)
        self.status = status
        self.type = "invalid_request_error" if status < 500 else "server_error"


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of any exception; of an unforeseen one, nothing but that it happened (the log has it)."""
    match error:
        case ApiError():
            return error
        case ParameterError():
            return InvalidRequest(str(error), param=error.param)
        case EngineUnavailable():
            return Unavailable("the engine is not ready; try again shortly", "engine_unavailable")
        case EngineDied():
            return Unavailable("the engine failed while it worked on this request; try again", "engine_died")
        case HTTPException():
            return HttpError(error.status_code, str(error.detail), error.headers)
    log.error("internal error", exc_info=error)
    return ApiError("internal error", code="internal_error")


def error_response(error: Exception, path: str) -> Response:
    """The plain answer to a request that failed, in the shape of the path's endpoint."""
    failure = as_api_error(error)
    body = anthropic_body(failure) if path.startswith(ANTHROPIC_PATH) else failure.body()
    return Response(orjson.dumps(body), failure.status, failure.headers, "application/json")


def anthropic_body(error: ApiError) -> dict[str, Any]:
    kind = ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    about: dict[str, Any] = {"type": kind, "message": error.message}
    if error.param == "thread":  # their tool runner goes on without
        about["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": about}


def invalid_body(error: ValidationError) -> InvalidRequest:
    """The first of pydantic's complaints: field, what was wrong, the value. There are few: see `schemas.Items`."""
    first = error.errors(include_url=False)[0]
    context = first.get("ctx", {})
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {context['error']}", code="invalid_json")
    path = [*first["loc"], context["param"]] if "param" in context else first["loc"]
    param = ".".join(str(part) for part in path) or None
    if first["type"] == "unsupported_field":
        place = ".".join(str(part) for part in first["loc"])
        message = f"{place}: {first['msg']}" if place else first["msg"]
        return InvalidRequest(message, param=param, code="unsupported_parameter")
    if first["type"] == "missing":
        return InvalidRequest(f"{param} is required", param=param, code="missing_required_parameter")
    problem = first["msg"].removeprefix("Input ")
    problem = problem[0].lower() + problem[1:]
    return InvalidRequest(f"{param or 'the body'} {problem}, got {shown(first['input'])}", param=param)


def shown(value: Any) -> str:
    """A value as an error message quotes it: short, and quick to make however large the value is."""
    text = repr(value[: SHOWN_CHARS + 1]) if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."
