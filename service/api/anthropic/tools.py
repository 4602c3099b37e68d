"""Tools in Anthropic's words, and what they are in chat's."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from service.http.errors import InvalidRequest, shown
from service.schema.conversation import MAX_NAME
from service.schema.fields import MAX_ITEMS, Body, Items, expect, only, optional, unsupported
from service.schema.tools import NAME, AllowedCalls, Function, allowed_calls, plain_call

Json = dict[str, Any]
CACHE_HINTS = ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"}, {"type": "ephemeral", "ttl": "1h"})
"""Prompts are cached without being told to."""


class TextBlock(Body):
    harmless = only(cache_control=CACHE_HINTS, citations=([],))
    type: Literal["text"] = Field(description='"text".')
    text: str = Field(description="Blocks are joined without a space.")


Texts = Annotated[
    str | Annotated[Items[TextBlock], Field(max_length=MAX_ITEMS)],
    expect(
        f"a string or a list of at most {MAX_ITEMS} blocks {{'type': 'text', 'text': ...}} (images are not supported)"
    ),
]


def text_of(content: str | list[Any] | None) -> str:
    """The texts among blocks."""
    if isinstance(content, list):
        return "".join(block.text for block in content if isinstance(block, TextBlock))
    return content or ""


class ToolUse(Body):
    """A call of an earlier answer."""

    harmless = only(
        cache_control=CACHE_HINTS,
        caller=({"type": "direct"},),
        toolset_name=(),
    )
    type: Literal["tool_use"] = Field(description='"tool_use".')
    id: str = Field(min_length=1, max_length=MAX_NAME, description="Which the tool's result refers to.")
    name: str = Field(max_length=64, description="The tool's.")
    input: Json = Field(description="The arguments.")

    def plain(self) -> Json:
        try:
            json.dumps(self.input, allow_nan=False)
        except ValueError as error:
            message = f"messages has a tool_use block {shown(self.id)} whose input is no JSON: {error}"
            raise InvalidRequest(message, param="messages") from None
        return plain_call(self.id, self.name, self.input)


class ToolResult(Body):
    """What a tool answered."""

    harmless = only(cache_control=CACHE_HINTS, toolset_name=())
    type: Literal["tool_result"] = Field(description='"tool_result".')
    tool_use_id: str = Field(max_length=MAX_NAME, description="The call's id.")
    content: Texts | None = optional("A string, or a list of text blocks.")
    is_error: bool | None = optional('The model is told so: "Error: " goes before the content.')

    def plain(self) -> Json:
        content = ("Error: " if self.is_error else "") + text_of(self.content)
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": content}


class ToolOffer(Body):
    harmless = only(
        allowed_callers=(["direct"],),
        cache_control=CACHE_HINTS,
        defer_loading=(False,),
        eager_input_streaming=(True,),
        input_examples=([],),
    )
    type: Literal["custom"] | None = optional('"custom"; the tools of Anthropic are not here.')
    name: str = Field(pattern=NAME, description="Up to 64 letters, digits, `_`, `-`, `.`.")
    description: str | None = optional("What the model is told of it.")
    input_schema: Json = Field(description="A JSON schema of an object.")
    strict: bool | None = optional("The input of a call that the model makes by itself keeps to the schema too.")

    @property
    def function(self) -> Function:
        return Function.model_construct(
            name=self.name, description=self.description, parameters=self.input_schema, strict=self.strict
        )


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"] = Field(description="auto, any, none or tool.")
    name: str | None = optional("With type tool: which.", max_length=64)
    disable_parallel_tool_use: bool | None = optional("One call at most. Default: false.")

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if (self.name is None) == (self.type == "tool"):
            raise unsupported("name", f"name goes with type tool and only with it, got type {self.type}")
        return self

    def allowed_calls(self, offered: Sequence[Function]) -> AllowedCalls:
        """Raises InvalidRequest."""
        chosen = {"none": [], "tool": [self.name or ""]}.get(self.type)
        one = self.type == "tool" or bool(self.disable_parallel_tool_use)
        return allowed_calls(offered, chosen, must=self.type in ("any", "tool"), one=one)
