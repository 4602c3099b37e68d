"""Tools in the words of the Responses API, and what they are in chat's."""

from typing import Annotated, Literal

from pydantic import Field

from service.schema.fields import Body, Items, expect, narrowed, only, optional
from service.schema.tools import MAX_TOOLS, AllowedCalls, Function, allowed_calls


class FunctionTool(Function):
    harmless = only(
        allowed_callers=(["direct"],),
        defer_loading=(False,),
        output_schema=(),
    )
    type: Literal["function"] = Field(description='"function"; the tools of OpenAI are not here.')


class FunctionChoice(Body):
    type: Literal["function"] = Field(description='"function".')
    name: str = Field(max_length=64, description="One of the tools.")


class AllowedTools(Body):
    type: Literal["allowed_tools"] = Field(description='"allowed_tools".')
    mode: Literal["auto", "required"] = Field(description="auto or required.")
    tools: Items[FunctionChoice] = Field(min_length=1, max_length=MAX_TOOLS, description="Some of the tools.")


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

    def allowed_calls(self) -> AllowedCalls:
        """Raises InvalidRequest."""
        offered = [narrowed(Function, tool) for tool in self.tools or ()]
        choice, one = self.tool_choice, self.parallel_tool_calls is False
        if isinstance(choice, FunctionChoice):
            return allowed_calls(offered, [choice.name], must=True, one=True)
        if isinstance(choice, AllowedTools):
            return allowed_calls(offered, [tool.name for tool in choice.tools], must=choice.mode == "required", one=one)
        return allowed_calls(offered, [] if choice == "none" else None, must=choice == "required", one=one)

    @property
    def may_call(self) -> bool:
        return bool(self.allowed_calls().functions)
