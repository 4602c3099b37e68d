"""The headers that the server adds to answers: CORS exposes them to web pages, the OpenAPI document describes them."""

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Header(NamedTuple):
    """The type and meaning of a header, and the answers that have it.

    "any": all answers; "model": those of a model; "body": those to a body; "final": errors of requests that never
    succeed as they are; "retriable": errors of a server that is full or not ready; "full": of one that is full.
    """

    type: str
    text: str
    of: Literal["any", "model", "body", "final", "retriable", "full"]


ID, QUEUE, IGNORED = b"x-request-id", b"x-queue-ms", b"x-noria-ignored"
HEADERS: Mapping[str, Header] = {
    ID.decode(): Header("string", "The client's id of the request, or a new one.", "any"),
    QUEUE.decode(): Header(
        "number",
        "Milliseconds from submission to the engine's first step; absent where a stream began with a keep-alive.",
        "model",
    ),
    IGNORED.decode(): Header("string", "The fields of the body that have no effect here.", "body"),
    "x-should-retry": Header("string", "false: the request never succeeds as it is.", "final"),
    "x-llm-d-request-dropped-reason": Header("string", "rejected-saturated: the queue is full.", "full"),
    "retry-after": Header("integer", "Seconds to wait before a new attempt.", "retriable"),
}
