"""Reads and checks the body of a request, and never holds more of it than the limit."""

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError

from service.api.admission import State
from service.http.errors import BodyTooLarge, HttpError, invalid_body
from service.schema.fields import Body

B = TypeVar("B", bound=Body)

SMALL_BYTES = 64 * 2**10
"""Up to this size the event loop checks a body: a thread would cost more."""


async def read_body(request: Request, kind: type[B]) -> B:
    """The body as `kind`. Raises BodyTooLarge, HttpError (415) or InvalidRequest."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HttpError(415, f"content-type must be application/json, got {media_type or 'none'}")
    state: State = request.app.state.noria
    content = await read_bytes(request, state.settings.max_body_bytes)
    if len(content) <= SMALL_BYTES:
        return _checked(content, kind)
    return await asyncio.to_thread(_checked, content, kind)


def _checked(content: bytes, kind: type[B]) -> B:
    try:
        body = kind.model_validate_json(content)
    except ValidationError as error:
        raise invalid_body(error) from None
    body.check()
    return body


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body, of at most `limit` bytes. Raises BodyTooLarge as soon as it or its `content-length` exceeds them."""
    if int(request.headers.get("content-length", 0)) > limit:
        raise BodyTooLarge(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLarge(limit)
        parts.append(part)
    return b"".join(parts)
