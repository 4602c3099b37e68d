"""The statuses of all errors, with the words of each reader: all dialects, OpenAPI, and refused connections."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

INVALID = "invalid_request_error"


class Status(NamedTuple):
    """`type` and `anthropic` are types of the status's errors: OpenAI's and Anthropic's. `cause` is for OpenAPI.

    `routes` are those for which OpenAPI lists it. "any"; "keyed": those that need a key; "bodies": those that take a
    body; "declared": those that declare it. `code` is that of an `HttpError`. `refused` is the reason in the metrics
    when a connection refuses a request with it.
    """

    type: str
    anthropic: str
    routes: Literal["any", "keyed", "bodies", "declared"]
    cause: str
    code: str | None = None
    refused: str | None = None


STATUSES: Mapping[int, Status] = {
    400: Status(
        INVALID,
        INVALID,
        "bodies",
        "A field or its value is not accepted; the message names the field, the value and the limit.",
        "invalid_http",
        "malformed",
    ),
    401: Status(INVALID, "authentication_error", "keyed", "The request has no key, or a wrong one."),
    403: Status("permission_error", "permission_error", "any", "The key, or the sender, may not do this."),
    404: Status(
        INVALID,
        "not_found_error",
        "keyed",
        "The server does not serve this model, or the key has no such request, response or conversation.",
        "not_found",
    ),
    405: Status(INVALID, INVALID, "declared", "The path has no such method.", "method_not_allowed"),
    408: Status(
        INVALID,
        INVALID,
        "bodies",
        "The head or the body of the request did not arrive in time.",
        "request_timeout",
        "timeout",
    ),
    409: Status(INVALID, INVALID, "declared", "An adapter, or the model, has this name already."),
    410: Status("request_cancelled", INVALID, "bodies", "The key has cancelled the request."),
    413: Status(INVALID, "request_too_large", "bodies", "The body is larger than the server's limit."),
    414: Status(INVALID, INVALID, "declared", "The URL is too long.", "uri_too_long", "too_large"),
    415: Status(INVALID, INVALID, "bodies", "The content type is not application/json.", "unsupported_media_type"),
    429: Status(
        "rate_limit_error",
        "rate_limit_error",
        "bodies",
        "The queue is full, or a limit of the key is reached; try again after `retry-after` seconds.",
    ),
    431: Status(INVALID, INVALID, "declared", "The head is too large.", "header_fields_too_large", "too_large"),
    500: Status("server_error", "api_error", "keyed", "The server failed."),
    503: Status(
        "service_unavailable_error",
        "overloaded_error",
        "keyed",
        "The server is loading, restarting or draining; try again after `retry-after` seconds.",
        refused="full",
    ),
}
"""405, 414 and 431 are sent before a route is known, or without one: no route declares them."""
FINAL = frozenset(status for status in STATUSES if status < 500) - {408, 429}
"""The statuses of requests that never succeed as they are. OpenAI's and Anthropic's packages would retry a 409."""
