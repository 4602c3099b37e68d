"""The choice among tools in a chat request."""

from functools import cached_property
from typing import Literal

from pydantic import Field

from service.schema.fields import Body, Items, optional
from service.schema.tools import MAX_TOOLS, AllowedCalls, OfferBody, allowed_calls


class Named(Body):
    name: str = Field(description="The name of one of the tools.")


class Reference(Body):
    """One of the tools: the model must call it."""

    type: Literal["function"] = Field(description='"function".')
    function: Named = Field(description="Which function.")


class Allowed(Body):
    mode: Literal["auto", "required"] = Field(
        description="auto: the model may answer with text. required: it must call a tool."
    )
    tools: Items[Reference] = Field(min_length=1, max_length=MAX_TOOLS, description="The tools that may be called.")


class AllowedChoice(Body):
    """Some of the tools."""

    type: Literal["allowed_tools"] = Field(description='"allowed_tools".')
    allowed_tools: Allowed = Field(description="Which tools, and whether one must be called.")


Choice = Literal["none", "auto", "required"] | Reference | AllowedChoice


class ToolsBody(OfferBody):
    """A request with functions that the model may call, and a choice among them."""

    tool_choice: Choice | None = optional(
        "Which functions the model may call: none, auto, required, one function or `allowed_tools`. Default: auto with "
        "tools, otherwise none."
    )
    parallel_tool_calls: bool | None = optional("false: the answer has at most one call. Default: true.")

    @cached_property
    def calls(self) -> AllowedCalls:
        choice, one = self.tool_choice, self.parallel_tool_calls is False
        if isinstance(choice, Reference):
            return allowed_calls(self.offered, [choice.function.name], must=True, one=True)
        if isinstance(choice, AllowedChoice):
            allowed = choice.allowed_tools
            names = [item.function.name for item in allowed.tools]
            return allowed_calls(self.offered, names, must=allowed.mode == "required", one=one)
        return allowed_calls(self.offered, [] if choice == "none" else None, must=choice == "required", one=one)
