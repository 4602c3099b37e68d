"""Routes, each with all that it declares, and their endpoints. A body never takes more than its limit.

The server, the metrics and the OpenAPI document read the declarations.
"""

import codecs
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin

import orjson
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import is_typeddict

from model.errors import quoted
from service.access.record import LAST, RESUME, Policy
from service.api.call import Answer, Call
from service.api.lanes import SMALL_BYTES
from service.api.resuming import resumable
from service.errors.dialects import EVENTS
from service.errors.errors import BodyTooLarge, HttpError, InvalidRequest, as_api_error
from service.errors.refusals import invalid_body
from service.http.sse import ClientGone
from service.schema.fields import Body, ModelBody, ignored_fields
from service.schema.generation import StreamBody
from service.schema.structure import BodyReading, StructureError

B = TypeVar("B", bound=Body)
Handler = Callable[[Call], Awaitable[Answer]]
BodyHandler = Callable[[Call, B], Awaitable[Answer]]
Parse = Callable[[bytes, BodyReading], Body]
Parser = Callable[[Headers], Parse]
"""What parses a body with these headers. Raises HttpError (415) for a body of another type."""
JSON, FORM = "application/json", "multipart/form-data"
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
    `body` is the type of the request's body in `body_type`, which `parser` reads, and `request` an example of it.
    `refusals` are statuses of errors that few routes have. `queries` are the query's parameters, each with all its
    values.
    """

    path: str
    methods: tuple[str, ...]
    handler: Callable[..., Awaitable[Answer]]
    name: str
    text: str
    policy: Policy
    answer: Any
    statuses: tuple[int, ...] = (200,)
    body: type[Body] | None = None
    parser: Parser | None = None
    body_type: str = JSON
    request: Mapping[str, Any] | None = None
    endless: bool = False
    or_text: bool = False
    refusals: tuple[int, ...] = ()
    queries: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        item = get_args(self.answer)[0] if get_origin(self.answer) is list else self.answer
        if item is not str and not is_typeddict(item):
            raise TypeError(f"{self.path}: the answer must be a TypedDict or str, or a list of one, got {self.answer}")

    @property
    def media_type(self) -> str:
        if self.endless:
            return EVENTS
        return "text/plain" if self.answer is str else JSON

    @property
    def streams(self) -> bool:
        """Return whether a request may ask for a stream."""
        return self.policy.generates and self.body is not None and "stream" in self.body.model_fields


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
    """Return a decorator that turns a handler into the route of `GET path`, or of other methods without a body.

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
    form: Callable[[type[B]], Parser] | None = None,
    or_text: bool = False,
) -> Callable[[BodyHandler[B]], Route]:
    """Return a decorator that turns a handler into the route of `POST path`. The handler gets the checked body.

    `form` makes the parser of a body that is a form; others are JSON.
    """

    def declare(handler: BodyHandler[B]) -> Route:
        about = handler.__name__, inspect.getdoc(handler) or "", policy, answer
        handle = resumable(handler) if policy.resumes else handler
        return Route(
            *(path, ("POST",), handle, *about),
            body=body,
            parser=form(body) if form else _json_parser(body, any_type=policy.dialect.any_type),
            body_type=FORM if form else JSON,
            request=request,
            or_text=or_text,
            refusals=refusals,
        )

    return declare


class Endpoint:
    """The ASGI application of a route: a call, from the body of its request to the last byte of its answer."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._ends_with_client = route.body is not None and issubclass(route.body, ModelBody)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in self._route.methods:  # a router takes HEAD for GET, also where the answer has no end
            raise HTTPException(405, headers={"allow": ", ".join(self._route.methods)})
        call = Call(scope, receive, send)
        try:
            with call:
                answer = self._answer(
                    call, None if self._route.parser is None else await _content(call, self._route.parser)
                )
                await call.watched(answer, expires=not self._route.endless)
        except (ClientGone, ClientDisconnect):
            raise
        except Exception as error:
            if not (call.writer and call.writer.started):
                raise
            await call.fail(as_api_error(error))

    async def _answer(self, call: Call, read: tuple[bytes, Parse] | None) -> None:
        body: tuple[Body, ...] = ()
        if read is not None:
            if self._ends_with_client:
                call.watch.allow()
            body = (await _parsed_body(call, *read),)
        call.name = _model_named(call.request, *body)
        handling = self._route.handler(call, *body)
        del read, body  # only the handler holds them now
        await call.sent(handling)


def _model_named(request: Request, body: Body | None = None) -> str | None:
    """Return the name of a model in the body of a request, or without a body in its path or its query."""
    if body is not None:
        return getattr(body, "model", None)
    return request.path_params.get("name", request.query_params.get("model"))


async def _content(call: Call, parser: Parser) -> tuple[bytes, Parse]:
    """Return the bytes of the body, and what parses them. Raises BodyTooLarge, HttpError (415) or Overloaded."""
    parse = parser(call.request.headers)
    _check_codings(call.request.headers)
    content = (await _read(call, call.state.settings.max_body_bytes)).removeprefix(codecs.BOM_UTF8)
    call.record.body_bytes = len(content)
    return content, parse


async def _parsed_body(call: Call, content: bytes, parse: Parse) -> Body:
    """Return the checked body. Raises InvalidRequest."""
    record, reading = call.record, BodyReading(lenient=call.state.settings.lenient)

    def checked() -> tuple[Body, tuple[str, ...]]:
        body = parse(content, reading)
        body.check()
        if any(header in call.request.headers for header in (RESUME, LAST)):
            record.body_digest = sha256(json.dumps(_parsed(content), sort_keys=True).encode()).hexdigest()
        return body, ignored_fields(body) if reading.ignores else ()

    small = len(content) <= SMALL_BYTES and sum(map(content.count, b'[{"')) <= SMALL_MARKS
    body, record.ignored = checked() if small else await call.on_lane(checked)
    call.release()
    if isinstance(body, StreamBody) and body.receipt == "full":
        record.body = content
    return body


def _json_parser(kind: type[Body], *, any_type: bool) -> Parser:
    def parser(headers: Headers) -> Parse:
        if not any_type:
            _check_type(headers)
        return parse

    def parse(content: bytes, reading: BodyReading) -> Body:
        try:
            reading.structure.add(content)
            return kind.model_validate_json(content, context=reading)
        except StructureError as error:
            raise InvalidRequest(str(error)) from None
        except ValidationError as error:
            raise invalid_body(error, _parsed(content)) from None

    return parser


def _check_type(headers: Headers) -> None:
    """Raise HttpError (415) unless the body is called JSON."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        raise HttpError(415, f"content-type must be {JSON}, got {media_type or 'none'}")


def _check_codings(headers: Headers) -> None:
    """Raise HttpError (415) for a compressed body."""
    codings = ",".join(headers.getlist("content-encoding"))
    if any(coding.strip().lower() not in ("", "identity") for coding in codings.split(",")):
        message = f"content-encoding must be identity: bodies are not compressed here, got {quoted(codings)}"
        raise HttpError(415, message, {"accept-encoding": "identity"})


def _parsed(content: bytes) -> Any:
    """Return the JSON of a body; None if it is none."""
    try:
        return from_json(content)
    except ValueError:
        return None


async def _read(call: Call, limit: int) -> bytes:
    """Read the body, of at most `limit` bytes. Raises BodyTooLarge as soon as it or its `content-length` exceeds them.

    The call holds what a body has beyond `SMALL_BYTES`: many large bodies do not keep small ones out.
    """
    if int(call.request.headers.get("content-length", 0)) > limit:
        raise BodyTooLarge(limit)
    parts: list[bytes] = []
    size = 0
    async for part in call.request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLarge(limit)
        call.hold(min(len(part), max(0, size - SMALL_BYTES)))
        parts.append(part)
    return b"".join(parts)


def json_response(answer: Mapping[str, Any], status: int = 200) -> Response:
    """Return a response with a small JSON answer, which the event loop encodes."""
    return Response(orjson.dumps(answer), status, media_type=JSON)
