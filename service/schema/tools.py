"""Tools that a model may call, and the calls of earlier messages."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError, from_json

from model.errors import quoted
from service.errors.errors import InvalidRequest
from service.errors.wording import either
from service.schema.fields import CACHED, Body, Items, Json, optional, unsupported
from service.schema.structure import Structure, StructureError

MAX_TOOLS = 128
MAX_CALLS = 128
NAME = r"^[a-zA-Z0-9_.-]{1,64}$"
NOT_RUN = "this server runs no tools itself: declare functions, and run them in the client"
RUN_BY_CLIENTS = ("function", "custom")
"""Types of tools that clients run, on any endpoint."""


class Function(Body):
    """A function that the model may call."""

    harmless = CACHED
    name: str = Field(pattern=NAME, description="The name of the function: up to 64 letters, digits, `_`, `-` and `.`.")
    description: str | None = optional("A description of the function for the model.")
    parameters: Json | None = optional("The parameters, as the JSON schema of an object. Default: no parameters.")
    strict: bool | None = optional("true: the arguments of calls follow the schema, even when `tool_choice` is auto.")

    def described(self) -> Json:
        """Describe the function as chat templates take it."""
        function = {"name": self.name, "description": self.description or "", "parameters": self.parameters or {}}
        return {"type": "function", "function": function}


def tool_type(kind: str, *others: str) -> BeforeValidator:
    """Return a validator of the type of a tool. The error names `others` too: types that other classes have."""

    def check(value: Any) -> Any:
        if value not in (kind, None):
            hint = "" if value in RUN_BY_CLIENTS else f"; {NOT_RUN}"
            raise unsupported(None, f"{quoted(value)} is not supported: only {either([kind, *others])}{hint}")
        return value

    return BeforeValidator(check)


class Tool(Body):
    harmless = CACHED
    type: Annotated[Literal["function"], tool_type("function")] = Field(description='"function".')
    function: Function = Field(description="The function.")


class AllowedCalls(NamedTuple):
    """The functions that an answer may call. `must`: it must call one. `one`: it may make one call only."""

    functions: tuple[Function, ...] = ()
    must: bool = False
    one: bool = False


def allowed_calls(
    offered: Sequence[Function], chosen: Sequence[str] | None = None, *, must: bool = False, one: bool = False
) -> AllowedCalls:
    """Return the offered functions with a `chosen` name (None: all of them).

    Raises InvalidRequest for two functions of one name, and for a choice among tools that are not there.
    """
    names = [function.name for function in offered]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"tools has two functions of the name {twice}", param="tools")
    if not names and (must or chosen):
        raise InvalidRequest("tool_choice needs tools, and there are none", param="tool_choice")
    missing = [name for name in chosen or () if name not in names]
    if missing:
        message = f"tool_choice names {quoted(missing[0])}, which is not among the tools"
        raise InvalidRequest(message, param="tool_choice")
    return AllowedCalls(tuple(function for function in offered if chosen is None or function.name in chosen), must, one)


def _parsed(arguments: Any, info: ValidationInfo) -> Json:
    """Return the object, or parse it: chat templates take objects. The context is the `BodyReading`."""
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str):
        raise PydanticCustomError("string", "must be a string or an object")
    structure = Structure() if info.context is None else info.context.structure
    try:
        structure.add(arguments.encode(), "the body with the arguments of all calls")
        value = from_json(arguments or "{}", allow_inf_nan=False)
    except StructureError as error:
        raise unsupported(None, f"must be a JSON object as a string, within limits: {error}") from None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise unsupported(None, f"must be a JSON object as a string, got {quoted(arguments)}")
    return value


class Called(Body):
    name: str = Field(max_length=64, description="The name of the function.")
    arguments: Annotated[Json, BeforeValidator(_parsed, json_schema_input_type=str | Json)] = Field(
        description="The arguments: a JSON object as a string, or the object."
    )
    parsed_arguments: Any = optional("The arguments as an SDK parsed them. It has no effect.")


class EarlierCall(Body):
    """A call in an earlier answer. A client may have joined it from the parts of a stream."""

    id: str = Field(
        min_length=1,
        max_length=256,
        description="The id of the call. The tool message that answers the call repeats it.",
    )
    type: Literal["function"] | None = optional('"function".')
    function: Called = Field(description="The function that was called, and its arguments.")
    index: int | None = optional("The index of the call in a stream. It has no effect.", ge=0, lt=MAX_CALLS)

    def plain(self) -> Json:
        return plain_call(self.id, self.function.name, self.function.arguments)


def plain_call(call_id: str, name: str, arguments: Json) -> Json:
    """Return a call as chat formats take it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class OfferBody(Body):
    """A request with functions that the model may call."""

    tools: Items[Tool] | None = optional("The functions that the model may call.", max_length=MAX_TOOLS)

    @property
    def offered(self) -> list[Function]:
        return [tool.function for tool in self.tools or ()]

    @cached_property
    def calls(self) -> AllowedCalls:
        """Return the functions that the answer may call. Raises InvalidRequest."""
        return allowed_calls(self.offered)
