"""Tools as clients describe them, and the calls of earlier turns."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError, from_json

from service.http.errors import InvalidRequest, shown
from service.schema.fields import Body, Items, optional, unsupported

MAX_TOOLS = 128
MAX_CALLS = 128
NAME = r"^[a-zA-Z0-9_.-]{1,64}$"
Json = dict[str, Any]


class Function(Body):
    name: str = Field(pattern=NAME, description="Up to 64 letters, digits, `_`, `-`, `.`.")
    description: str | None = optional("What the model is told of it.")
    parameters: Json | None = optional("A JSON schema of an object. Default: no parameters.")
    strict: bool | None = optional("Arguments of a call that the model makes by itself keep to the schema too.")

    def described(self) -> Json:
        """As models are told of it."""
        function = {"name": self.name, "description": self.description or "", "parameters": self.parameters or {}}
        return {"type": "function", "function": function}


class Tool(Body):
    type: Literal["function"] = Field(description='"function".')
    function: Function = Field(description="What may be called.")


class AllowedCalls(NamedTuple):
    """Functions that an answer may call: `must` if nothing else will do, `one` if several calls are too many."""

    functions: tuple[Function, ...] = ()
    must: bool = False
    one: bool = False


def allowed_calls(
    offered: Sequence[Function], chosen: Sequence[str] | None = None, *, must: bool = False, one: bool = False
) -> AllowedCalls:
    """The offered functions with a `chosen` name (None: all of them).

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
        message = f"tool_choice names {shown(missing[0])}, which is not among the tools"
        raise InvalidRequest(message, param="tool_choice")
    return AllowedCalls(tuple(function for function in offered if chosen is None or function.name in chosen), must, one)


def _parsed(arguments: Any) -> Json:
    """The object that a string of JSON holds: chat templates want it."""
    if not isinstance(arguments, str):
        raise PydanticCustomError("string", "should be a valid string")
    try:
        value = from_json(arguments or "{}", allow_inf_nan=False)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise unsupported(None, f"must be a JSON object as a string, got {shown(arguments)}")
    return value


class Called(Body):
    name: str = Field(max_length=64, description="The function's.")
    arguments: Annotated[Json, BeforeValidator(_parsed, json_schema_input_type=str)] = Field(
        description="A JSON object, as a string."
    )
    parsed_arguments: Any = optional("What an SDK made of the arguments; without effect.")


class Call(Body):
    """A call of an earlier answer, or its parts as a stream gave them, joined."""

    id: str = Field(min_length=1, max_length=256, description="Which the tool's answer refers to.")
    type: Literal["function"] | None = optional('"function".')
    function: Called = Field(description="What was called.")
    index: int | None = optional("Its place in a stream's deltas; without effect.", ge=0, lt=MAX_CALLS)

    def plain(self) -> Json:
        return plain_call(self.id, self.function.name, self.function.arguments)


def plain_call(call_id: str, name: str, arguments: Json) -> Json:
    """A call as chat formats take it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class OfferBody(Body):
    """A body that may offer functions to call."""

    tools: Items[Tool] | None = optional("Functions that the model may call.", max_length=MAX_TOOLS)

    @property
    def offered(self) -> list[Function]:
        return [tool.function for tool in self.tools or ()]

    def allowed_calls(self) -> AllowedCalls:
        """Raises InvalidRequest."""
        return allowed_calls(self.offered)

    @property
    def may_call(self) -> bool:
        return bool(self.allowed_calls().functions)
