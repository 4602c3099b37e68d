"""The tools of the Responses API, and the choice among them."""

from typing import Annotated, Literal

from pydantic import Field

from service.schema.fields import Body, Items, expect, narrowed, only, optional
from service.schema.tools import MAX_TOOLS, AllowedCalls, Function, allowed_calls


class FunctionTool(Function):
    """A function that the model may call."""

    harmless = only(allowed_callers=(["direct"],), defer_loading=(False,), output_schema=())
    type: Literal["function"] = Field(description='"function". The built-in tools of OpenAI are not supported.')


class FunctionChoice(Body):
    """One of the tools: the model must call it."""

    type: Literal["function"] = Field(description='"function".')
    name: str = Field(max_length=64, description="The name of one of the tools.")


class AllowedTools(Body):
    """Some of the tools."""

    type: Literal["allowed_tools"] = Field(description='"allowed_tools".')
    mode: Literal["auto", "required"] = Field(
        description="auto: the model may answer with text. required: it must call a tool."
    )
    tools: Items[FunctionChoice] = Field(
        min_length=1, max_length=MAX_TOOLS, description="The tools that may be called."
    )


ToolsChoice = Annotated[
    Literal["none", "auto", "required"] | FunctionChoice | AllowedTools,
    expect('"none", "auto", "required", {"type": "function", "name": ...} or allowed_tools'),
]


class CallingBody(Body):
    """A request with functions that the model may call, and a choice among them."""

    tools: Items[FunctionTool] | None = optional("The functions that the model may call.", max_length=MAX_TOOLS)
    tool_choice: ToolsChoice | None = optional(
        "Which functions the model may call: none, auto, required, one function or `allowed_tools`. Default: auto with "
        "tools, otherwise none."
    )
    parallel_tool_calls: bool | None = optional("false: the answer has at most one call. Default: true.")

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
