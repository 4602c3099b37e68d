"""Tools in the words of the Responses API, and what they are in chat's."""

from typing import Annotated, Any, Literal

from pydantic import Field

from service.schema.fields import Body, Items, expect, optional
from service.schema.harmless import HARMLESS_FUNCTION_TOOL
from service.schema.tools import MAX_TOOLS, Function

Json = dict[str, Any]


class FunctionTool(Function):
    harmless = HARMLESS_FUNCTION_TOOL
    type: Literal["function"] = Field(description='"function"; the tools of OpenAI are not here.')

    def as_chat(self) -> Json:
        return {"type": "function", "function": self.model_dump(include=set(Function.model_fields))}


class FunctionChoice(Body):
    type: Literal["function"] = Field(description='"function".')
    name: str = Field(max_length=64, description="One of the tools.")

    def as_chat(self) -> Json:
        return {"type": "function", "function": {"name": self.name}}


class AllowedTools(Body):
    type: Literal["allowed_tools"] = Field(description='"allowed_tools".')
    mode: Literal["auto", "required"] = Field(description="auto or required.")
    tools: Items[FunctionChoice] = Field(min_length=1, max_length=MAX_TOOLS, description="Some of the tools.")

    def as_chat(self) -> Json:
        allowed = {"mode": self.mode, "tools": [tool.as_chat() for tool in self.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}


ToolsChoice = Annotated[
    Literal["none", "auto", "required"] | FunctionChoice | AllowedTools,
    expect('"none", "auto", "required", {"type": "function", "name": ...} or allowed_tools'),
]


class CallingBody(Body):
    """A body that may offer functions to call."""

    tools: Items[FunctionTool] | None = optional("Functions that the model may call.", max_length=MAX_TOOLS)
    tool_choice: ToolsChoice | None = optional(
        "none, auto, required, one function or `allowed_tools`. Default: auto with tools, else none."
    )
    parallel_tool_calls: bool | None = optional("Several calls in one answer. Default: true.")

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    def calls_as_chat(self) -> Json:
        choice = self.tool_choice
        return {
            "tools": [tool.as_chat() for tool in self.tools or ()],
            "tool_choice": choice if choice is None or isinstance(choice, str) else choice.as_chat(),
            "parallel_tool_calls": self.parallel_tool_calls,
        }
