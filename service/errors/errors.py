"""Errors that reach a client: status codes and messages. `dialects.py` writes them as each API does.

Messages leak no path and no traceback.

ApiError
├── InvalidRequest     400  a field outside its range, an unknown field, malformed JSON
│   └── ContextExceeded     the prompt, or the prompt and the answer, are longer than the context
├── Unauthorized       401  no key, or not one of ours
├── Forbidden          403  a key that may not do this
├── ModelNotFound      404  a model that is not served here
├── RequestNotFound    404  no request in flight of this key has this id
├── NotStored          404  the store has nothing of this key with this id
├── AdapterNotFound    404  no adapter has this name
├── AdapterExists      409  an adapter, or the model, has this name
├── Cancelled          410  the key has cancelled the request
├── BodyTooLarge       413
├── HistoryTooLarge    413  the stored items of a request are larger than a body may be
├── Overloaded         429  the queue is full
├── StoreFull          429  the store has no place for what a request begins
├── RateLimited        429  a limit of the request's key is reached
├── Unavailable        503  loading, restarting or draining
└── HttpError          404, 405, 415: no such route, method or content type; 400, 408, 414, 431: the bytes
"""

import errno
import logging
from collections.abc import Mapping

from starlette.exceptions import HTTPException

from model.errors import ParameterError, quoted
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.errors.statuses import STATUSES

log = logging.getLogger("noria.api")

EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC}
"""Errors of a system that has no more descriptors, memory, processes or disk."""
MAX_NAMED = 8
"""The limit for names of models in the message of a 404."""


class ApiError(Exception):
    """An error with the message for its client. `param` names the wrong field, `code` is for programs.

    For the log: `limit_name` is the flag of the limit, or the field of the key's entry; `model` is the unknown one.
    """

    status = 500
    limit_name: str | None = None
    model: str | None = None

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

    @property
    def type(self) -> str:
        """Return the kind of error, in OpenAI's words."""
        return STATUSES[self.status].type


class InvalidRequest(ApiError):
    status = 400


class ContextExceeded(InvalidRequest):
    """The `prompt` and the `answer` have more tokens than the context, whose size is `limit`.

    `bound`: the prompt was not tokenized and has at least so many tokens.
    """

    def __init__(
        self, message: str, *, param: str, prompt: int, limit: int, answer: int = 0, bound: bool = False
    ) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")
        self.prompt = prompt
        self.answer = answer
        self.limit = limit
        self.bound = bound


class Unauthorized(ApiError):
    status = 401

    def __init__(self, key_header: str | None) -> None:
        other = f" or '{key_header}: KEY'" if key_header else ""
        super().__init__(
            f"a valid API key is required: send it as 'Authorization: Bearer KEY'{other}",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


class Forbidden(ApiError):
    status = 403


class ModelNotFound(ApiError):
    status = 404

    def __init__(self, name: str, served: tuple[str, ...]) -> None:
        more = f" and {len(served) - MAX_NAMED} more, see /v1/models" if len(served) > MAX_NAMED else ""
        message = f"the model {quoted(name)} does not exist here; served: {', '.join(served[:MAX_NAMED])}{more}"
        super().__init__(message, param="model", code="model_not_found")
        self.model = quoted(name)[1:-1]


class RequestNotFound(ApiError):
    status = 404

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"no request {quoted(request_id)} of this key is in flight; its id is the header x-request-id",
            param="id",
            code="request_not_found",
        )


class NotStored(ApiError):
    status = 404

    def __init__(self, kind: str, id: str) -> None:
        super().__init__(f"no {kind} {quoted(id)} of this key is stored", param="id", code=f"{kind}_not_found")


class AdapterNotFound(ApiError):
    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"no adapter has the name {quoted(name)}", param="lora_name", code="adapter_not_found")


class AdapterExists(ApiError):
    status = 409

    def __init__(self, name: str) -> None:
        message = f"a model or adapter has the name {quoted(name)} already; unload it first, or choose another name"
        super().__init__(message, param="lora_name", code="adapter_exists")


class Cancelled(ApiError):
    """The end of a request whose API has no finish reason for it. Client libraries do not try this status again."""

    status = 410

    def __init__(self, how: str) -> None:
        super().__init__(f"the request was cancelled {how}", code="request_cancelled")


class BodyTooLarge(ApiError):
    status = 413
    limit_name = "--max-body"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request body is larger than {limit} bytes", code="request_too_large")


class HistoryTooLarge(ApiError):
    status = 413
    limit_name = "--max-body"

    def __init__(self, n_bytes: int, limit: int) -> None:
        message = f"the stored items of this conversation have {n_bytes} bytes, the limit is {limit} (--max-body)"
        super().__init__(f"{message}: compact it before it is so long", code="history_too_large")


DROPPED = {"x-llm-d-request-dropped-reason": "rejected-saturated"}
"""The header by which llm-d's router learns why a server refused."""


class Overloaded(ApiError):
    status = 429

    def __init__(self, what: str, value: int, limit: int, retry_after: int, limit_name: str | None = None) -> None:
        message = f"the server is full: {value} {what}, the limit is {limit}; try again in {retry_after} s"
        super().__init__(message, code="queue_full", headers={"retry-after": str(retry_after), **DROPPED})
        self.limit_name = limit_name


class StoreFull(ApiError):
    status = 429
    limit_name = "--responses-store-size"

    def __init__(self, message: str = "the store has no place for this: delete something, or send less") -> None:
        super().__init__(message, code="store_full", headers={"retry-after": "10"})


class RateLimited(ApiError):
    status = 429

    def __init__(self, key: str, what: str, value: int, limit: int, retry_after: int, limit_name: str) -> None:
        message = f"the key {key} has {value} {what}, the limit is {limit}; try again in {retry_after} s"
        super().__init__(message, code="rate_limit_exceeded", headers={"retry-after": str(retry_after)})
        self.limit_name = limit_name


class Unavailable(ApiError):
    status = 503

    def __init__(self, message: str, code: str, retry_after: int = 2) -> None:
        super().__init__(message, code=code, headers={"retry-after": str(retry_after)})


class HttpError(ApiError):
    """An error of routing, or of the bytes of a request."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, code=STATUSES[status].code, headers=headers)
        self.status = status


def as_api_error(error: Exception) -> ApiError:
    """Return the error that a client receives for an exception. Of an unexpected one only the log has the details."""
    match error:
        case ApiError():
            return error
        case ParameterError():
            return InvalidRequest(str(error), param=error.param)
        case EngineUnavailable():
            return Unavailable("the engine is not ready; try again shortly", "engine_unavailable")
        case EngineDied():
            return Unavailable("the engine failed while it computed this request; try again", "engine_died")
        case HTTPException():
            return HttpError(error.status_code, str(error.detail), error.headers)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in EXHAUSTED):
        log.error("the system has no more memory, descriptors, processes or disk: %s", error)
        return Unavailable("the server is out of resources; try again shortly", "out_of_resources")
    log.error("internal error", exc_info=error)
    return ApiError("internal error", code="internal_error")
