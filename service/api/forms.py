"""Bodies that are forms (`multipart/form-data`, RFC 7578): a file, and fields as text."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import File, parse_options_header
from starlette.responses import Response

from model.errors import one_line, quoted
from service.access.record import Policy, RequestRecord
from service.api.routes import Route, check_codings, read_bytes
from service.api.state import State
from service.errors.errors import HttpError, InvalidRequest
from service.errors.refusals import invalid_body
from service.http.sse import while_connected
from service.schema.fields import Body, Reading, ignored_fields

B = TypeVar("B", bound=Body)
FORM = "multipart/form-data"
MAX_FIELDS = 64
MAX_BOUNDARY = 70
"""Bytes of a boundary (RFC 2046, section 5.1.1)."""


def post_form(
    path: str, *, body: type[B], request: Mapping[str, Any], answer: Any, policy: Policy, or_text: bool = False
) -> Callable[[Callable[[Request, B], Awaitable[Response]]], Route]:
    """A decorator that turns a handler into the route of `POST path`. The handler gets the checked form."""

    def declare(handler: Callable[[Request, B], Awaitable[Response]]) -> Route:
        async def read_and_handle(received: Request) -> Response:
            return await handler(received, await read_form(received, body))

        about = handler.__name__, inspect.getdoc(handler) or "", policy, answer
        return Route(
            *(path, ("POST",), read_and_handle, *about), body=body, body_type=FORM, request=request, or_text=or_text
        )

    return declare


async def read_form(request: Request, kind: type[B]) -> B:
    """The form as `kind`. Raises BodyTooLarge, HttpError (415), InvalidRequest, Overloaded or ClientGone."""
    media_type, options = parse_options_header(request.headers.get("content-type", ""))
    if media_type.decode("latin-1") != FORM or not (boundary := options.get(b"boundary")):
        found = quoted(request.headers.get("content-type", "none"))
        raise HttpError(415, f"content-type must be {FORM} with a boundary, got {found}")
    if len(boundary) > MAX_BOUNDARY:
        raise HttpError(415, f"the boundary in content-type has {len(boundary)} bytes, the limit is {MAX_BOUNDARY}")
    check_codings(request)
    files = [name for name, field in kind.model_fields.items() if field.annotation is bytes]
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]
    with state.bodies.holding(record.sender) as take:
        content = await read_bytes(request, state.settings.max_body_bytes, take)
        record.body_bytes = len(content)
        reading = Reading(lenient=state.settings.lenient)
        checked = state.work.run(lambda: _checked(_fields(content, boundary, files), kind, reading), len(content))
        body, record.ignored = await while_connected(request.receive, state.drain.expired, checked)
    return body


class _Fields:
    """The fields of a form by name: texts, the bytes of `files`, and a list of texts for a name that ends with "[]"."""

    def __init__(self, files: Collection[str]) -> None:
        self.found: dict[str, Any] = {}
        self.ended = False
        self._files = files
        self._n_parts = 0

    def add(self, name: bytes | None, value: bytes, *, is_file: bool) -> None:
        """Raises InvalidRequest for a part that the form may not have."""
        key, self._n_parts = (name or b"").decode(errors="replace"), self._n_parts + 1
        if self._n_parts > MAX_FIELDS:
            raise InvalidRequest(f"a form may have at most {MAX_FIELDS} fields")
        bare = key.removesuffix("[]")
        if is_file and key not in self._files:
            raise InvalidRequest(f"the form has a file in the field {quoted(key)}, which takes none", param=key)
        if bare in self.found and not (bare != key and isinstance(self.found[bare], list)):
            raise InvalidRequest(f"the form has the field {quoted(bare)} twice", param=bare)
        if bare != key:
            self.found.setdefault(bare, []).append(_text(key, value))
        else:
            self.found[key] = value if key in self._files else _text(key, value)

    def add_file(self, file: File) -> None:
        file.file_object.seek(0)
        self.add(file.field_name, file.file_object.read(), is_file=True)

    def end(self) -> None:
        self.ended = True


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{quoted(name)} must be text in UTF-8", param=name) from None


def _fields(content: bytes, boundary: bytes, files: Collection[str]) -> Mapping[str, Any]:
    """The fields of a form. Raises InvalidRequest."""
    fields = _Fields(files)
    try:
        parser = FormParser(
            FORM,
            lambda field: fields.add(field.field_name, field.value or b"", is_file=False),
            fields.add_file,
            fields.end,
            boundary=boundary,
            config={"MAX_MEMORY_FILE_SIZE": len(content) + 1, "UPLOAD_ERROR_ON_BAD_CTE": True},
        )
        parser.write(content)
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"the form cannot be read: {one_line(error)}") from error
    if not fields.ended:
        raise InvalidRequest("the form cannot be read: it ends before its last boundary")
    return fields.found


def _checked(fields: Mapping[str, Any], kind: type[B], reading: Reading) -> tuple[B, tuple[str, ...]]:
    """The body, and the names of its fields that have no effect. Numbers and booleans are given as text."""
    try:
        body = kind.model_validate(fields, strict=False, context=reading)
    except ValidationError as error:
        raise invalid_body(error, {name: value for name, value in fields.items() if isinstance(value, str)}) from None
    body.check()
    return body, ignored_fields(body) if reading.ignores else ()
