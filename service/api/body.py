"""Reads and checks the body of a request, and never holds more of it than the limit."""

import codecs
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import from_json

from model.errors import quoted
from service.access.record import RequestRecord
from service.api.admission import State
from service.api.lanes import SMALL_BYTES
from service.errors.errors import BodyTooLarge, HttpError, InvalidRequest
from service.errors.refusals import invalid_body
from service.http.sse import while_connected
from service.schema.fields import Body
from service.schema.lenient import ignored_fields
from service.schema.structure import Reading, StructureError

B = TypeVar("B", bound=Body)

SMALL_MARKS = 2**11
"""A small body with at most this many brackets and quotation marks is checked on the event loop: a thread would cost
more."""


async def read_body(request: Request, kind: type[B]) -> B:
    """The body as `kind`. Raises BodyTooLarge, HttpError (415), InvalidRequest, Overloaded or ClientGone."""
    _check_headers(request)
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]
    with state.admission.holding_body(record.sender) as take:
        content = await read_bytes(request, state.settings.max_body_bytes, take)
        content = content.removeprefix(codecs.BOM_UTF8)
        record.body_bytes = len(content)
        reading = Reading(lenient=state.settings.lenient)
        if len(content) <= SMALL_BYTES and sum(map(content.count, b'[{"')) <= SMALL_MARKS:
            body, record.ignored = _checked(content, kind, reading)
        else:
            checked = state.admission.work.run(lambda: _checked(content, kind, reading), len(content))
            body, record.ignored = await while_connected(request.receive, state.admission.expired, checked)
    if record.ignored:
        state.notices.note(record.sender, record.path, record.ignored)
    return body


def _check_headers(request: Request) -> None:
    """Raise HttpError (415) unless the body is plain JSON."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HttpError(415, f"content-type must be application/json, got {media_type or 'none'}")
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
