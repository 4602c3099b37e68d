"""The tools of the Responses API, and the choice among them."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag

from model.errors import quoted
from service.errors.errors import InvalidRequest
from service.errors.wording import either
from service.schema.conversation import MAX_NAME
from service.schema.fields import Body, Items, Repeated, narrowed, only, optional, unsupported
from service.schema.tools import MAX_TOOLS, NAME, NOT_RUN, RUN_BY_CLIENTS, AllowedCalls, Function, allowed_calls

TEXT_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The parameters of a custom tool."""


class FunctionTool(Function):
    """A function that the model may call."""

    harmless = only(allowed_callers=(["direct"],), defer_loading=(False,), output_schema=())
    noticed = only(defer_loading=(True,))
    type: Literal["function"] = Field(description='"function".')
    parameters: Repeated | None = optional(Function.model_fields["parameters"].description or "")


class TextFormat(Body):
    type: Literal["text"] = Field(description='"text".')


class GrammarFormat(Body):
    """A grammar of the input. The model reads it; it is not enforced."""

    type: Literal["grammar"] = Field(description='"grammar".')
    syntax: str = Field(max_length=MAX_NAME, description="The syntax of the grammar, such as lark.")
    definition: str = Field(description="The grammar. It becomes a part of the description, and is not enforced.")


class CustomTool(Body):
    """A tool whose only argument is a text."""

    harmless, noticed = FunctionTool.harmless, FunctionTool.noticed
    type: Literal["custom"] = Field(description='"custom".')
    name: str = Field(pattern=NAME, description="The name of the tool: up to 64 letters, digits, `_`, `-` and `.`.")
    description: str | None = optional("A description of the tool for the model.")
    format: TextFormat | GrammarFormat | None = optional("The format of the text. Default: any text.")

    @property
    def function(self) -> Function:
        grammar = self.format if isinstance(self.format, GrammarFormat) else None
        about = f"The input follows this {grammar.syntax} grammar:\n{grammar.definition}" if grammar else None
        description = "\n\n".join(filter(None, [self.description, about]))
        return Function.model_construct(name=self.name, description=description, parameters=TEXT_INPUT, strict=True)


class Namespace(Body):
    """Functions under one name, as Codex writes those of an MCP server."""

    type: Literal["namespace"] = Field(description='"namespace".')
    name: str = Field(pattern=NAME, description="The name. Its calls have it as `namespace`.")
    description: str | None = optional("A description. It has no effect.")
    tools: Items[FunctionTool] = Field(max_length=MAX_TOOLS, description="The functions.")

    def functions(self) -> Iterator[Function]:
        for tool in self.tools:
            function = narrowed(Function, tool)
            yield function.model_copy(update={"name": flat_name(self.name, tool.name)})


HostedType = Literal[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
]


class HostedTool(Body):
    """A tool that OpenAI runs or trains its models for. The model is not told of it."""

    left_out = True
    type: HostedType = Field(description="The type of the tool. Its other fields have no effect.")


Tool = FunctionTool | CustomTool | Namespace | HostedTool
HOSTED: tuple[str, ...] = get_args(HostedType)


def _type_of(tool: Any) -> str | None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return kind if isinstance(kind, str) else None


def _check_type(tool: Any) -> Any:
    """Return the tool. Raises an error that names its type, if no tool has that type."""
    if isinstance(tool, dict) and _type_of(tool) not in (*RUN_BY_CLIENTS, "namespace", *HOSTED):
        kind = quoted(tool.get("type"))
        raise unsupported("type", f"type {kind} is not supported: only {either(RUN_BY_CLIENTS)}; {NOT_RUN}")
    return tool


def _tag(tool: Any) -> str | None:
    """Return the tag of a tool's type. Errors have it beside names of fields: it must differ from all of them."""
    kind = _type_of(tool)
    return "hosted tool" if kind in HOSTED else kind and f"{kind} tool"


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("function tool")]
    | Annotated[CustomTool, Tag("custom tool")]
    | Annotated[Namespace, Tag("namespace tool")]
    | Annotated[HostedTool, Tag("hosted tool")],
    Discriminator(_tag, custom_error_type="expected", custom_error_message="must be a tool"),
    BeforeValidator(_check_type),
]


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name of a function for the model."""
    return f"{namespace}__{name}" if namespace else name


def functions_of(tool: Tool) -> list[Function]:
    """Return the functions of a tool for the model; none for a hosted tool."""
    if isinstance(tool, FunctionTool):
        return [narrowed(Function, tool)]
    if isinstance(tool, CustomTool):
        return [tool.function]
    return [*tool.functions()] if isinstance(tool, Namespace) else []


class FunctionChoice(Body):
    """One of the tools: the model must call it."""

    type: Literal["function", "custom"] = Field(description="function or custom.")
    name: str = Field(max_length=64, description="The name of one of the tools.")


class AllowedTools(Body):
    """Some of the tools."""

    type: Literal["allowed_tools"] = Field(description='"allowed_tools".')
    mode: Literal["auto", "required"] = Field(description="auto: text is allowed too. required: it must call a tool.")
    tools: Items[FunctionChoice] = Field(min_length=1, max_length=MAX_TOOLS, description="The tools that are allowed.")


ToolsChoice = Literal["none", "auto", "required"] | FunctionChoice | AllowedTools


class CallingBody(Body):
    """A request with functions that the model may call, and a choice among them."""

    tools: Items[AnyTool] | None = optional("The tools that the model may call.", max_length=MAX_TOOLS)
    tool_choice: ToolsChoice | None = optional(
        "Which functions the model may call: none, auto, required, one function or `allowed_tools`. Default: auto with "
        "tools, otherwise none."
    )
    parallel_tool_calls: bool | None = optional("false: the answer has at most one call. Default: true.")

    @cached_property
    def calls(self) -> AllowedCalls:
        """Return the functions that the answer may call. Raises InvalidRequest."""
        offered = [function for tool in self.tools or () for function in functions_of(tool)]
        choice, one = self.tool_choice, self.parallel_tool_calls is False
        if isinstance(choice, FunctionChoice):
            return allowed_calls(offered, self._chosen([choice]), must=True, one=True)
        if isinstance(choice, AllowedTools):
            return allowed_calls(offered, self._chosen(choice.tools), must=choice.mode == "required", one=one)
        return allowed_calls(offered, [] if choice == "none" else None, must=choice == "required", one=one)

    def _chosen(self, chosen: Sequence[FunctionChoice]) -> list[str]:
        """Return the names of the chosen tools. Raises InvalidRequest for one that is of another type."""
        for tool in chosen:
            if (tool.type == "custom") != (tool.name in self.custom_names):
                message = f"tool_choice names {quoted(tool.name)}, which is not among the tools of type {tool.type}"
                raise InvalidRequest(message, param="tool_choice")
        return [tool.name for tool in chosen]

    @property
    def custom_names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools or () if isinstance(tool, CustomTool))

    @property
    def namespaces(self) -> dict[str, tuple[str, str]]:
        """Return namespace and name of each function in a namespace, by its name for the model."""
        spaces = [tool for tool in self.tools or () if isinstance(tool, Namespace)]
        return {flat_name(space.name, tool.name): (space.name, tool.name) for space in spaces for tool in space.tools}
