"""Request bodies: their base class, helpers to declare fields, and fields that are unknown or have no effect."""

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from model.errors import quoted
from model.sampling_params import PARAMETERS
from service.access.record import MAX_IGNORED, printable
from service.errors.errors import InvalidRequest
from service.errors.refusals import unknown_fields
from service.errors.wording import either

MAX_NAMED_FIELDS = 4
"""The limit for unknown fields that an error names, each with the known one that is probably meant."""
MAX_CHOICES = 4
"""The limit for values of a field without effect that an error names."""
MAX_ITEMS = 2**14
"""The limit for messages, parts of a message, and texts to choose from: a lane has one thread for many requests."""

Json = dict[str, Any]
T = TypeVar("T")


def only(**values: tuple[Any, ...]) -> Mapping[str, tuple[Any, ...]]:
    """Declare fields without effect: each passes with null or one of these values, which describe the server."""
    return MappingProxyType(values)


def _describe_extras(schema: dict[str, Any], body: type["Body"]) -> None:
    """Close the JSON schema of a body, and add the fields without effect with the values that pass."""
    passing = {name: {"enum": [*values, None]} for name, values in body.passing().items()}
    schema |= {"properties": passing | schema.get("properties", {}), "additionalProperties": body.left_out}


HINTS = tuple(
    {"type": "ephemeral", **ttl, **scope}
    for ttl in ({}, {"ttl": "5m"}, {"ttl": "1h"})
    for scope in ({}, {"scope": "global"}, {"scope": "organization"})
)
BREAKPOINTS = ({"mode": "explicit"}, *({"mode": "explicit", "ttl": ttl} for ttl in ("30m", "12h")))
"""Prompts are cached without these hints of Anthropic and OpenAI, for as long as there is memory."""
CACHED = only(cache_control=HINTS, prompt_cache_breakpoint=BREAKPOINTS)

INPUTS = ("previous_response_id", "conversation", "prompt", "input", "messages", "system", "instructions", "tools")
CHANGING = frozenset((*PARAMETERS, *INPUTS, "background", "n", "random_seed", "response_format", "safe_prompt"))
"""The fields of any dialect that change an answer. An answer without their effect would be wrong."""


class Body(BaseModel):
    """A request body, or an object in it: strict types, finite numbers, no unknown fields.

    `harmless`: fields of OpenAI or of other servers that have no effect here -> the values that pass.
    `noticed`: fields without effect -> the values that pass with a notice in the header `x-noria-ignored`; a declared
    field passes with any value. `left_out`: the object has no effect, and the header names it.
    `changing`: fields that change an answer where they have an effect. `--lenient` does not let them pass.
    `synonyms`: other names of a field -> the field. A request may have both, if their values are the same.
    """

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=(), json_schema_extra=_describe_extras
    )
    harmless: ClassVar[Mapping[str, tuple[Any, ...]]] = only()
    noticed: ClassVar[Mapping[str, tuple[Any, ...]]] = only()
    left_out: ClassVar[bool] = False
    changing: ClassVar[frozenset[str]] = frozenset()
    synonyms: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @model_validator(mode="after")
    def _refuse_extras(self, info: ValidationInfo) -> Self:
        without = self.without_effect()
        refused = [] if self.left_out else [name for name, passes in without.items() if not passes]
        if info.context is not None and info.context.lenient:
            refused = [name for name in refused if name in self.changing]
        if refused:
            self._refuse(refused)
        if (without or self.left_out) and info.context is not None:
            info.context.ignores = True
        for name in dict.fromkeys(self.synonyms.values()):
            first = getattr(self, self.given_as(name))
            for other in self._names(name):
                if (value := getattr(self, other)) not in (None, first):
                    found = f"{self.given_as(name)} ({quoted(first)}) and {other} ({quoted(value)}) differ"
                    raise unsupported(self.given_as(name), f"{found}: send one of them")
        return self

    @model_serializer(mode="wrap")
    def _declared(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Leave fields without meaning here out of an answer that repeats the object."""
        return {name: value for name, value in handler(self).items() if name not in (self.__pydantic_extra__ or {})}

    def without_effect(self) -> dict[str, bool]:
        """Return which given fields mean nothing here and are not harmless, and whether each passes with a notice."""
        found = {}
        for name, value in (self.__pydantic_extra__ or {}).items():
            if not _accepts(self.harmless.get(name), value):
                found[name] = _accepts(self.noticed.get(name), value)
        for name in self.noticed:
            if name in type(self).model_fields and getattr(self, name) is not None:
                found[name] = True
        return found

    @classmethod
    def passing(cls) -> dict[str, tuple[Any, ...]]:
        """Return the fields without effect, each with the values that are accepted."""
        names = {**cls.harmless, **cls.noticed}
        return {name: (*cls.harmless.get(name, ()), *cls.noticed.get(name, ())) for name in names}

    def _refuse(self, names: list[str]) -> None:
        """Raise the error for fields without effect: the unknown ones, or the first of the others."""
        passing = self.passing()
        unknown = [name for name in names if name not in passing]
        if unknown:
            known = [field.alias or name for name, field in type(self).model_fields.items()]
            more = len(unknown) > MAX_NAMED_FIELDS
            message = unknown_fields(unknown[:MAX_NAMED_FIELDS], more, known, [*passing])
            raise unsupported(unknown[0], message)
        name, value = names[0], (self.__pydantic_extra__ or {})[names[0]]
        allowed = _distinct(passing[name])
        if len(allowed) > MAX_CHOICES:
            choices = f"null, {quoted(allowed[0])} or one of its {len(allowed) - 1} variants in docs/api.md"
        else:
            choices = either([*allowed, None])
        raise unsupported(name, f"{name} is not supported: only {choices} is accepted, got {quoted(value)}")

    def _names(self, name: str) -> list[str]:
        """Return all names of a field, its own first."""
        return [name, *(other for other, meaning in self.synonyms.items() if meaning == name)]

    def given_as(self, name: str) -> str:
        """Return the name under which the request has a field; its own if it has none."""
        return next((each for each in self._names(name) if getattr(self, each) is not None), name)

    def agreed(self, name: str) -> Any:
        """Return the value of a field, under whichever of its names the request has it."""
        return getattr(self, self.given_as(name))

    def check(self) -> None:
        """Check what depends on several fields. Raises InvalidRequest."""

    @staticmethod
    def check_computed(*values: object) -> None:
        """Take values whose computation raises InvalidRequest for a wrong request. Nothing is done with them."""


B = TypeVar("B", bound=Body)


def _accepts(allowed: tuple[Any, ...] | None, value: Any) -> bool:
    """Return whether a harmless field (None: no field) may have this value; True is not 1 here."""
    if allowed is None:
        return False
    return value is None or any(type(value) is type(other) and value == other for other in allowed)


def _distinct(allowed: tuple[Any, ...]) -> list[Any]:
    """Return the values without those that JSON does not distinguish, such as 1.0 beside 1."""
    return [value for index, value in enumerate(allowed) if value not in allowed[:index]]


def unsupported(name: str | None, message: str) -> PydanticCustomError:
    """Return the error for the field `name` of the object that is validated, or for that object."""
    about = {"message": message} if name is None else {"message": message, "param": name}
    return PydanticCustomError("unsupported_field", "{message}", about)


def expect(expected: str) -> WrapValidator:
    """Return a validator that gives a union one error message, not one for each member."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValueError:
            raise PydanticCustomError("expected", "must be {expected}", {"expected": expected}) from None

    return WrapValidator(validate)


def _check_numbers(value: Any) -> Any:
    """Return the value. Raises an error for a number in it that no answer can repeat."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_numbers(item)
    if isinstance(value, float) and not math.isfinite(value):
        raise unsupported(None, "must have finite numbers only: others are not JSON")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise unsupported(None, f"must have integers of at most 64 bits, got {quoted(value)}")
    return value


Repeated = Annotated[Json, AfterValidator(_check_numbers)]
"""An object that the answer repeats."""


def synonym(name: str, whose: str, **limits: Any) -> Any:
    """Declare a field that is another server's name of the field `name`. `Body.synonyms` must have it too."""
    return Field(None, description=f"{whose} name of `{name}`.", **limits)


def ranged(name: str, description: str | None = None, *, least: int | None = None) -> Any:
    """Declare an optional field with limits and description of the sampling parameter `name`, or with those given."""
    return Field(None, description=description or PARAMETERS[name].description, **limits_of(name, least=least))


def limits_of(name: str, *, least: int | None = None) -> dict[str, Any]:
    """Return the limits of the sampling parameter `name` as those of a field; `least` replaces the lower one."""
    lowest, greatest = PARAMETERS[name].limits or (None, None)
    return {"ge": lowest if least is None else least, "le": greatest}


def optional(description: str, **limits: Any) -> Any:
    """Declare a field that may be null, which means the default."""
    return Field(None, description=description, **limits)


class ModelBody(Body):
    """A request to a model."""

    changing = CHANGING
    noticed = only(keep_alive=(), ttl=())
    model: str | None = optional("The id of a model in `/v1/models`. Default: the served model.")
    keep_alive: str | float | None = optional("Ollama's field. It has no effect: the model stays loaded.")
    ttl: float | None = optional("LM Studio's field. It has no effect: the model stays loaded.")

    @property
    def end_user(self) -> str | None:
        """Return the client's name for its user."""
        return None


def narrowed(kind: type[B], body: Body) -> B:
    """Return the fields of `kind` from a body that has them and more; they are not validated again."""
    return kind.model_construct(None, **{name: getattr(body, name) for name in kind.model_fields})


Items = Annotated[list[T], Field(fail_fast=True)]
"""A list whose validation ends at the first bad item: a body may have millions of them."""
TokenIds = Items[int]
MAX_PROMPTS = 1024
Prompts = Annotated[
    str | Items[str] | TokenIds | Items[TokenIds],
    expect("a string, a list of strings, a list of token ids or a list of lists of token ids"),
]


def listed(prompts: Prompts) -> list[str] | list[TokenIds]:
    """Return the list of prompts, each a string or token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]
    return prompts  # type: ignore[return-value]


def check_prompts(name: str, prompts: list[str] | list[TokenIds]) -> int:
    """Return the number of prompts. Raises InvalidRequest for none and for too many."""
    if not prompts:
        raise InvalidRequest(f"{name} must not be an empty list", param=name)
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"{name} takes at most {MAX_PROMPTS} prompts, got {len(prompts)}", param=name)
    return len(prompts)


def ignored_fields(body: Body) -> tuple[str, ...]:
    """Return the paths of the fields without effect, such as "messages[0].mood", as a header can have them.

    They are one more than a header names, if there are so many.
    """
    paths = islice(_paths(body, ""), MAX_IGNORED + 1)
    return tuple(map(printable, paths))


def _paths(body: Body, before: str) -> Iterator[str]:
    yield from (before + name for name in body.without_effect())
    for name, declared in type(body).model_fields.items():
        yield from _inside(getattr(body, name), before + (declared.alias or name))


def _inside(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Body):
        yield from [path] if value.left_out else _paths(value, f"{path}.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _inside(item, f"{path}[{index}]")


def declared_paths(body: type[Body], before: str = "") -> Iterator[str]:
    """Yield the paths of all fields that a body may have, without indices: "messages.content.type"."""
    for name, declared in body.model_fields.items():
        path = before + (declared.alias or name)
        yield path
        for inner in _bodies(declared.annotation):
            yield from declared_paths(inner, f"{path}.")
    yield from (before + name for name in body.passing())


def _bodies(annotation: Any) -> Iterator[type[Body]]:
    if isinstance(annotation, type) and issubclass(annotation, Body):
        yield annotation
    for argument in get_args(annotation):
        yield from _bodies(argument)
