"""Routes, each with all that it declares. The server, the metrics, the OpenAPI document and the field table read it."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from fastapi import Request
from starlette.responses import Response
from typing_extensions import is_typeddict

from service.access.policy import Policy
from service.api.body import read_body
from service.schema.fields import Body

B = TypeVar("B", bound=Body)
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route:
    """One endpoint. Raises TypeError if its answer has no type.

    The document describes the first of `methods`. `name` and `text` (the docstring, empty under `python -OO`) are the
    handler's. `answer` is the TypedDict of the JSON that is sent with one of `statuses` (`str`: plain text), and
    `answers` are examples of it.
    `endless`: the answer is the data of events that are sent until the client goes.
    `body` is the type of the request's body, and `request` an example of it. `refusals` are statuses of errors that
    few routes have.
    """

    path: str
    methods: tuple[str, ...]
    handler: Handler
    name: str
    text: str
    policy: Policy
    answer: Any
    answers: tuple[Any, ...]
    statuses: tuple[int, ...] = (200,)
    body: type[Body] | None = None
    request: Mapping[str, Any] | None = None
    endless: bool = False
    refusals: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.answer is not str and not is_typeddict(self.answer):
            raise TypeError(f"{self.path}: the answer must be a TypedDict or str, got {self.answer}")

    @property
    def media_type(self) -> str:
        if self.endless:
            return "text/event-stream"
        return "text/plain" if self.answer is str else "application/json"

    @property
    def streams(self) -> bool:
        """Whether a request may ask for server-sent events."""
        return self.body is not None and "stream" in self.body.model_fields


def get(
    path: str,
    *,
    answer: Any,
    answers: tuple[Any, ...] = (),
    statuses: tuple[int, ...] = (200,),
    methods: tuple[str, ...] = ("GET",),
    policy: Policy = Policy(),  # noqa: B008 - frozen
    endless: bool = False,
) -> Callable[[Handler], Route]:
    """A decorator that turns a handler into the route of `GET path`, or of other methods without a body."""

    def declare(handler: Handler) -> Route:
        return Route(
            path=path,
            methods=methods,
            handler=handler,
            name=handler.__name__,
            text=inspect.getdoc(handler) or "",
            policy=policy,
            answer=answer,
            answers=answers,
            statuses=statuses,
            endless=endless,
        )

    return declare


def post(
    path: str,
    *,
    body: type[B],
    request: Mapping[str, Any],
    answer: Any,
    answers: tuple[Any, ...],
    policy: Policy = Policy(),  # noqa: B008 - frozen
    refusals: tuple[int, ...] = (),
) -> Callable[[Callable[[Request, B], Awaitable[Response]]], Route]:
    """A decorator that turns a handler into the route of `POST path`. The handler gets the checked body."""

    def declare(handler: Callable[[Request, B], Awaitable[Response]]) -> Route:
        async def read_and_handle(request: Request) -> Response:
            return await handler(request, await read_body(request, body))

        return Route(
            path=path,
            methods=("POST",),
            handler=read_and_handle,
            name=handler.__name__,
            text=inspect.getdoc(handler) or "",
            policy=policy,
            answer=answer,
            answers=answers,
            body=body,
            request=request,
            refusals=refusals,
        )

    return declare


def json_response(answer: Mapping[str, Any], status: int = 200) -> Response:
    """A response with a small JSON answer, which the event loop encodes."""
    return Response(orjson.dumps(answer), status, media_type="application/json")
