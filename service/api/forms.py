"""Bodies that are forms (`multipart/form-data`, RFC 7578): a file, and fields as text."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError
from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import File, parse_options_header
from starlette.datastructures import Headers

from model.errors import one_line, quoted
from service.api.routes import FORM, Parse, Parser
from service.errors.errors import HttpError, InvalidRequest
from service.errors.refusals import invalid_body
from service.schema.fields import Body
from service.schema.structure import BodyReading

MAX_FIELDS = 64
MAX_BOUNDARY = 70
"""Bytes of a boundary (RFC 2046, section 5.1.1)."""


def form_parser(kind: type[Body]) -> Parser:
    """Return what parses a form as a body of this kind. Fields of bytes are files."""
    files = [name for name, field in kind.model_fields.items() if field.annotation is bytes]

    def parser(headers: Headers) -> Parse:
        media_type, options = parse_options_header(headers.get("content-type", ""))
        if media_type.decode("latin-1") != FORM or not (boundary := options.get(b"boundary")):
            found = quoted(headers.get("content-type", "none"))
            raise HttpError(415, f"content-type must be {FORM} with a boundary, got {found}")
        if len(boundary) > MAX_BOUNDARY:
            raise HttpError(415, f"the boundary in content-type has {len(boundary)} bytes, the limit is {MAX_BOUNDARY}")
        return lambda content, reading: _checked(_fields(content, boundary, files), kind, reading)

    return parser


class _Fields:
    """The fields of a form by name: texts, the bytes of `files`, and a list of texts for a name that ends with "[]"."""

    def __init__(self, files: Collection[str]) -> None:
        self.found: dict[str, Any] = {}
        self.ended = False
        self._files = files
        self._n_parts = 0

    def add(self, name: bytes | None, value: bytes, *, is_file: bool) -> None:
        """Add a part. Raises InvalidRequest for one that the form may not have."""
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
    """Read the fields of a form. Raises InvalidRequest."""
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


def _checked(fields: Mapping[str, Any], kind: type[Body], reading: BodyReading) -> Body:
    """Check the fields of a body, whose numbers and booleans are text. Raises InvalidRequest."""
    try:
        return kind.model_validate(fields, strict=False, context=reading)
    except ValidationError as error:
        raise invalid_body(error, {name: value for name, value in fields.items() if isinstance(value, str)}) from None
