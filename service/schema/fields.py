"""The base class of request bodies, which refuses unknown fields, and helpers to declare fields."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from model.sampling_params import PARAMETERS
from service.http.errors import quoted

MAX_NAMED_FIELDS = 8
MAX_ITEMS = 2**14
"""The limit for messages, parts of a message, and texts to choose from: all requests share one tokenizing thread."""

MODEL = "The id of a model in `/v1/models`. Default: the served model."
"""The description of the field `model`."""

T = TypeVar("T")


def only(**values: tuple[Any, ...]) -> Mapping[str, tuple[Any, ...]]:
    """Fields without effect: each is accepted with null or one of these values, which describe what the server does."""
    return MappingProxyType(values)


def _describe_extras(schema: dict[str, Any], body: type["Body"]) -> None:
    """The JSON schema of a body is closed, and has the harmless fields with the values that pass."""
    harmless = {name: {"enum": [*values, None]} for name, values in body.harmless.items()}
    schema |= {"properties": harmless | schema.get("properties", {}), "additionalProperties": False}


class Body(BaseModel):
    """A request body, or an object in it: strict types, finite numbers, no unknown fields.

    `harmless` are fields of OpenAI or of other servers that have no effect here, with the values that are accepted.
    """

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        json_schema_extra=_describe_extras,
    )
    harmless: ClassVar[Mapping[str, tuple[Any, ...]]] = only()

    @model_validator(mode="after")
    def _refuse_extras(self) -> Self:
        extras = self.__pydantic_extra__ or {}
        unknown = [name for name in extras if name not in self.harmless]
        if unknown:
            names = ", ".join(map(quoted, unknown[:MAX_NAMED_FIELDS])) + (", ..." if unknown[MAX_NAMED_FIELDS:] else "")
            raise unsupported(unknown[0], f"unknown or unsupported field: {names}")
        for name, value in extras.items():
            allowed = self.harmless[name]
            if not _accepts(allowed, value):
                choices = " or ".join([*map(repr, allowed), "null"])
                raise unsupported(name, f"{name} is not supported: only {choices} is accepted, got {quoted(value)}")
        return self

    def check(self) -> None:
        """Check what depends on several fields. Raises InvalidRequest."""


B = TypeVar("B", bound=Body)


def _accepts(allowed: tuple[Any, ...], value: Any) -> bool:
    """Whether a harmless field may have this value; True is not 1 here."""
    return value is None or any(type(value) is type(other) and value == other for other in allowed)


def unsupported(name: str | None, message: str) -> PydanticCustomError:
    """The error for the field `name` of the object that is validated, or for that object."""
    about = {"message": message} if name is None else {"message": message, "param": name}
    return PydanticCustomError("unsupported_field", "{message}", about)


def expect(expected: str) -> WrapValidator:
    """A validator that gives a union one error message, not one for each member."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValueError:
            raise PydanticCustomError("expected", "must be {expected}", {"expected": expected}) from None

    return WrapValidator(validate)


def ranged(name: str, description: str | None = None, *, least: int | None = None) -> Any:
    """An optional field with the limits and the description of the sampling parameter `name`, or with those given."""
    row = PARAMETERS[name]
    lowest, greatest = row.limits or (None, None)
    return Field(None, ge=lowest if least is None else least, le=greatest, description=description or row.description)


def optional(description: str, **limits: Any) -> Any:
    """A field that may be null, which means the default."""
    return Field(None, description=description, **limits)


def narrowed(kind: type[B], body: Body) -> B:
    """The fields of `kind` from a body that has them and more; they are not validated again."""
    return kind.model_construct(None, **{name: getattr(body, name) for name in kind.model_fields})


Items = Annotated[list[T], Field(fail_fast=True)]
"""A list whose validation ends at the first bad item: a body may have millions of them."""
TokenIds = Items[int]
