"""Routes, each with all that it declares, and the reading of their bodies. A body never takes more than its limit.

The server, the metrics and the OpenAPI document read the declarations.
"""

import codecs
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import orjson
from fastapi import Request
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.responses import Response
from typing_extensions import is_typeddict

from model.errors import quoted
from service.access.record import Policy, RequestRecord
from service.api.lanes import SMALL_BYTES
from service.api.state import State
from service.errors.dialects import EVENTS
from service.errors.errors import BodyTooLarge, HttpError, InvalidRequest
from service.errors.refusals import invalid_body
from service.http.sse import while_connected
from service.schema.fields import Body, Reading, StructureError, ignored_fields
from service.schema.generation import StreamBody

B = TypeVar("B", bound=Body)
Handler = Callable[[Request], Awaitable[Response]]
HELLO = [{"role": "user", "content": "Say hello."}]
"""Messages of examples."""
SMALL_MARKS = 2**11
"""A small body with at most this many brackets and quotation marks is checked on the event loop: a thread would cost
more."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One endpoint. Raises TypeError if its answer has no type.

    The document describes the first of `methods`. `name` and `text` (the docstring, empty under `python -OO`) are the
    handler's. `answer` is the TypedDict of the JSON that is sent with one of `statuses` (`str`: plain text). `or_text`:
    a request may ask for plain text in its place.
    `endless`: the answer is the data of events that are sent until the client goes.
    `body` is the type of the request's body in `body_type`, and `request` an example of it. `refusals` are statuses of
    errors that few routes have. `queries` are the query's parameters, each with all its values.
    """

    path: str
    methods: tuple[str, ...]
    handler: Handler
    name: str
    text: str
    policy: Policy
    answer: Any
    statuses: tuple[int, ...] = (200,)
    body: type[Body] | None = None
    body_type: str = "application/json"
    request: Mapping[str, Any] | None = None
    endless: bool = False
    or_text: bool = False
    refusals: tuple[int, ...] = ()
    queries: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.answer is not str and not is_typeddict(self.answer):
            raise TypeError(f"{self.path}: the answer must be a TypedDict or str, got {self.answer}")

    @property
    def media_type(self) -> str:
        if self.endless:
            return EVENTS
        return "text/plain" if self.answer is str else "application/json"

    @property
    def streams(self) -> bool:
        """Whether a request may ask for a stream."""
        return self.body is not None and "stream" in self.body.model_fields


def get(
    path: str,
    *,
    answer: Any,
    statuses: tuple[int, ...] = (200,),
    methods: tuple[str, ...] = (),
    policy: Policy = Policy(),  # noqa: B008 - frozen
    endless: bool = False,
    queries: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Callable[[Handler], Route]:
    """A decorator that turns a handler into the route of `GET path`, or of other methods without a body.

    HEAD is answered as GET is, but for what has no end.
    """

    def declare(handler: Handler) -> Route:
        name, text = handler.__name__, inspect.getdoc(handler) or ""
        taken = methods or (("GET",) if endless else ("GET", "HEAD"))
        return Route(path, taken, handler, name, text, policy, answer, statuses, endless=endless, queries=queries)

    return declare


def post(
    path: str,
    *,
    body: type[B],
    request: Mapping[str, Any],
    answer: Any,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    refusals: tuple[int, ...] = (),
) -> Callable[[Callable[[Request, B], Awaitable[Response]]], Route]:
    """A decorator that turns a handler into the route of `POST path`. The handler gets the checked body."""

    def declare(handler: Callable[[Request, B], Awaitable[Response]]) -> Route:
        async def read_and_handle(received: Request) -> Response:
            return await handler(received, await read_body(received, body))

        name, text = handler.__name__, inspect.getdoc(handler) or ""
        return Route(
            path, ("POST",), read_and_handle, name, text, policy, answer, body=body, request=request, refusals=refusals
        )

    return declare


async def read_body(request: Request, kind: type[B]) -> B:
    """The body as `kind`. Raises BodyTooLarge, HttpError (415), InvalidRequest, Overloaded or ClientGone."""
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]
    if not record.policy.dialect.any_type:
        _check_type(request)
    check_codings(request)
    with state.bodies.holding(record.sender) as take:
        content = await read_bytes(request, state.settings.max_body_bytes, take)
        content = content.removeprefix(codecs.BOM_UTF8)
        record.body_bytes = len(content)
        reading = Reading(lenient=state.settings.lenient)
        if len(content) <= SMALL_BYTES and sum(map(content.count, b'[{"')) <= SMALL_MARKS:
            body, record.ignored = _checked(content, kind, reading)
        else:
            checked = state.work.run(lambda: _checked(content, kind, reading), len(content))
            body, record.ignored = await while_connected(request.receive, state.drain.expired, checked)
        if isinstance(body, StreamBody) and body.receipt == "full":
            record.body = content
    return body


def _check_type(request: Request) -> None:
    """Raise HttpError (415) unless the body is called JSON."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HttpError(415, f"content-type must be application/json, got {media_type or 'none'}")


def check_codings(request: Request) -> None:
    """Raise HttpError (415) for a compressed body."""
    codings = ",".join(request.headers.getlist("content-encoding"))
    if any(coding.strip().lower() not in ("", "identity") for coding in codings.split(",")):
        message = f"content-encoding must be identity: bodies are not compressed here, got {quoted(codings)}"
        raise HttpError(415, message, {"accept-encoding": "identity"})


def _checked(content: bytes, kind: type[B], reading: Reading) -> tuple[B, tuple[str, ...]]:
    """The body, and the names of its fields that have no effect."""
    try:
        reading.structure.add(content)
        body = kind.model_validate_json(content, context=reading)
    except StructureError as error:
        raise InvalidRequest(str(error)) from None
    except ValidationError as error:
        raise invalid_body(error, _parsed(content)) from None
    body.check()
    return body, ignored_fields(body) if reading.ignores else ()


def _parsed(content: bytes) -> Any:
    """The JSON of a body; None if it is none."""
    try:
        return from_json(content)
    except ValueError:
        return None


async def read_bytes(request: Request, limit: int, take: Callable[[int], None]) -> bytes:
    """The body, of at most `limit` bytes. Raises BodyTooLarge as soon as it or its `content-length` exceeds them.

    `take` counts what a body holds beyond `SMALL_BYTES`: many large bodies do not keep small ones out.
    """
    if int(request.headers.get("content-length", 0)) > limit:
        raise BodyTooLarge(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLarge(limit)
        take(min(len(part), max(0, size - SMALL_BYTES)))
        parts.append(part)
    return b"".join(parts)


def json_response(answer: Mapping[str, Any], status: int = 200) -> Response:
    """A response with a small JSON answer, which the event loop encodes."""
    return Response(orjson.dumps(answer), status, media_type="application/json")
