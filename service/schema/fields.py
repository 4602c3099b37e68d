"""What the schemas are made of: a strict body that refuses unknown fields, and kinds of fields."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from model.sampling_params import PARAMETERS
from service.http.errors import shown

SHOWN_FIELDS = 8
MAX_ITEMS = 2**14
"""Of messages, of parts of one, of texts to choose from: more would hold up everybody's tokenizing."""

T = TypeVar("T")


def only(**values: tuple[Any, ...]) -> Mapping[str, tuple[Any, ...]]:
    """Harmless fields: each passes with null or one of these values, which describe what happens anyway."""
    return MappingProxyType(values)


def _describe_extras(schema: dict[str, Any], body: type["Body"]) -> None:
    """The JSON schema of a body is closed, and has the harmless fields with the values that pass."""
    harmless = {name: {"enum": [*values, None]} for name, values in body.harmless.items()}
    schema |= {"properties": harmless | schema.get("properties", {}), "additionalProperties": False}


class Body(BaseModel):
    """Strict types, finite numbers, no unknown fields save the harmless ones."""

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
            names = ", ".join(map(shown, unknown[:SHOWN_FIELDS])) + (", ..." if unknown[SHOWN_FIELDS:] else "")
            raise unsupported(unknown[0], f"unknown or unsupported field: {names}")
        for name, value in extras.items():
            allowed = self.harmless[name]
            if not _accepts(allowed, value):
                choices = " or ".join([*map(repr, allowed), "null"])
                raise unsupported(name, f"{name} is not supported: only {choices} passes, got {shown(value)}")
        return self

    def check(self) -> None:
        """What needs more than one field to judge. Raises InvalidRequest."""


B = TypeVar("B", bound=Body)


def _accepts(allowed: tuple[Any, ...], value: Any) -> bool:
    """Whether a harmless field may hold `value`; True is not 1 here."""
    return value is None or any(type(value) is type(other) and value == other for other in allowed)


def unsupported(name: str | None, message: str) -> PydanticCustomError:
    """The error of a field inside what is validated, or of that itself."""
    about = {"message": message} if name is None else {"message": message, "param": name}
    return PydanticCustomError("unsupported_field", "{message}", about)


def expect(expected: str) -> WrapValidator:
    """One message for a union, in place of one for each of its members."""

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
    """A field whose default, null, is the model's default or ours."""
    return Field(None, description=description, **limits)


def narrowed(kind: type[B], body: Body) -> B:
    """The fields of `kind` from a body that has more, as they were validated there."""
    return kind.model_construct(None, **{name: getattr(body, name) for name in kind.model_fields})


Items = Annotated[list[T], Field(fail_fast=True)]
"""A list whose first bad item ends its validation: a body may hold millions of them."""
TokenIds = Items[int]
