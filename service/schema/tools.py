"""Tools as clients describe them, and the calls of earlier turns."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import from_json

from service.http.errors import InvalidRequest, shown
from service.schema.fields import Body, Items, expect, optional, unsupported

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


class Named(Body):
    name: str = Field(description="The name of one of the tools.")


class Reference(Body):
    """One of the tools."""

    type: Literal["function"] = Field(description='"function".')
    function: Named = Field(description="Which function.")


class Allowed(Body):
    mode: Literal["auto", "required"] = Field(description="auto or required.")
    tools: Items[Reference] = Field(min_length=1, max_length=MAX_TOOLS, description="Some of the tools.")


class AllowedChoice(Body):
    """Some of the tools."""

    type: Literal["allowed_tools"] = Field(description='"allowed_tools".')
    allowed_tools: Allowed = Field(description="Which tools, and whether one must be called.")


Choice = Annotated[
    Literal["none", "auto", "required"] | Reference | AllowedChoice,
    expect('"none", "auto", "required", {"type": "function", "function": {"name": ...}} or allowed_tools'),
]


class Called(Body):
    name: str = Field(max_length=64, description="The function's.")
    arguments: str = Field(description="A JSON object, as a string.")
    parsed_arguments: Any = optional("What an SDK made of the arguments; without effect.")

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        self.parsed()
        return self

    def parsed(self) -> Json:
        """Chat templates want the object."""
        try:
            arguments = from_json(self.arguments or "{}", allow_inf_nan=False)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise unsupported("arguments", f"arguments must be a JSON object as a string, got {shown(self.arguments)}")
        return arguments


class Call(Body):
    """A call of an earlier answer, or its parts as a stream gave them, joined."""

    id: str = Field(min_length=1, max_length=256, description="Which the tool's answer refers to.")
    type: Literal["function"] | None = optional('"function".')
    function: Called = Field(description="What was called.")
    index: int | None = optional("Its place in a stream's deltas; without effect.", ge=0, lt=MAX_CALLS)

    def plain(self) -> Json:
        function = {"name": self.function.name, "arguments": self.function.parsed()}
        return {"id": self.id, "type": "function", "function": function}


class OfferBody(Body):
    """A body that may offer functions to call."""

    tools: Items[Tool] | None = optional("Functions that the model may call.", max_length=MAX_TOOLS)

    @property
    def offered(self) -> list[Function]:
        return [tool.function for tool in self.tools or ()]

    def check_tools(self) -> None:
        """Raises InvalidRequest for two functions of one name."""
        names = [function.name for function in self.offered]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidRequest(f"tools has two functions of the name {twice}", param="tools")


class ToolsBody(OfferBody):
    """A body that may offer functions, and say which of them are to be called."""

    tool_choice: Choice | None = optional(
        "none, auto, required, one function or `allowed_tools`. Default: auto with tools, else none."
    )
    parallel_tool_calls: bool | None = optional("Several calls in one answer. Default: true.")

    @property
    def functions(self) -> list[Function]:
        """Those that may be called."""
        names = [] if self.tool_choice == "none" else self._chosen()
        return [function for function in self.offered if names is None or function.name in names]

    @property
    def must_call(self) -> bool:
        choice = self.tool_choice
        if isinstance(choice, AllowedChoice):
            return choice.allowed_tools.mode == "required"
        return choice == "required" or isinstance(choice, Reference)

    @property
    def one_call(self) -> bool:
        return self.parallel_tool_calls is False or isinstance(self.tool_choice, Reference)

    def check_tools(self) -> None:
        """Raises InvalidRequest also for a choice among tools that are not there."""
        super().check_tools()
        names = [function.name for function in self.offered]
        if not names and self.tool_choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice needs tools, and there are none", param="tool_choice")
        missing = [name for name in self._chosen() or () if name not in names]
        if missing:
            message = f"tool_choice names {shown(missing[0])}, which is not among the tools"
            raise InvalidRequest(message, param="tool_choice")

    def _chosen(self) -> Sequence[str] | None:
        """Names in the choice; None: all."""
        choice = self.tool_choice
        if isinstance(choice, Reference):
            return [choice.function.name]
        if isinstance(choice, AllowedChoice):
            return [item.function.name for item in choice.allowed_tools.tools]
        return None
