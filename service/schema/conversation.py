"""Messages of a conversation in chat's words, and how they are written for the model."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from service.http.errors import InvalidRequest, shown
from service.schema.fields import MAX_ITEMS, Body, Items, expect, only, optional, unsupported
from service.schema.tools import MAX_CALLS, Call

MAX_NAME = 256


class TextPart(Body):
    type: Literal["text"] = Field(description='"text".')
    text: str = Field(description="A string; the parts of a message are joined.")


Content = Annotated[
    str | Annotated[Items[TextPart], Field(max_length=MAX_ITEMS)],
    expect(
        f"a string or a list of at most {MAX_ITEMS} parts {{'type': 'text', 'text': ...}} (images and other parts are "
        "not supported)"
    ),
]
ROLES = ("system", "developer", "user", "assistant", "tool")


class Message(Body):
    """One turn. Text parts are concatenated; only an assistant's content may be null."""

    harmless = only(
        refusal=(),
        annotations=([],),
        audio=(),
        function_call=(),
        reasoning=("",),
        reasoning_content=("",),
        thinking_blocks=([],),
        images=([],),
        provider_specific_fields=({}, {"refusal": None}, {"citations": None, "thinking_blocks": None}),  # LiteLLM's
    )
    role: str = Field(description="system, developer, user, assistant or tool.")
    content: Content | None = optional("A string, or a list of text parts; null only for an assistant.")
    name: str | None = optional("Given to chat templates, which may use it.", max_length=MAX_NAME)
    tool_calls: Items[Call] | None = optional("An assistant's calls.", max_length=MAX_CALLS)
    tool_call_id: str | None = optional("Of the call that a message of role tool answers.", max_length=MAX_NAME)
    parsed: Any = optional("What an SDK made of the content; without effect.")

    @model_validator(mode="after")
    def _check_turn(self) -> Self:
        if self.role not in ROLES:
            raise unsupported("role", f"role {shown(self.role)} is not supported: expected one of {', '.join(ROLES)}")
        if self.content is None and self.role != "assistant":
            raise unsupported("content", f"content is required in a message of role {self.role}")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise unsupported("tool_call_id", "tool_call_id belongs to messages of role tool, which need it")
        if self.tool_calls and self.role != "assistant":
            raise unsupported("tool_calls", f"tool_calls belong to messages of role assistant, not {self.role}")
        return self

    def plain(self) -> dict[str, Any]:
        content = self.content or ""
        plain: dict[str, Any] = {
            "role": self.role,
            "content": content if isinstance(content, str) else "".join(part.text for part in content),
        }
        calls = [call.plain() for call in self.tool_calls or ()]
        others = {"name": self.name, "tool_call_id": self.tool_call_id, "tool_calls": calls or None}
        return plain | {name: value for name, value in others.items() if value is not None}


class TemplateOptions(NamedTuple):
    """Keyword arguments of `ChatFormat.encode`."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = MappingProxyType({})


class TemplateBody(Body):
    """How messages are written for the model."""

    add_generation_prompt: bool | None = optional(
        "Opens the model's answer. Default: true, unless `continue_final_message`."
    )
    continue_final_message: bool | None = optional("The answer continues the last message, an assistant's.")
    chat_template_kwargs: dict[str, Any] | None = optional(
        "Values of variables that the model's chat template declares: numbers, strings of up to 1024 characters, true, "
        "false, null."
    )

    @property
    def template_options(self) -> TemplateOptions:
        continues = bool(self.continue_final_message)
        opens = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        return TemplateOptions(opens, continues, self.chat_template_kwargs or {})

    def check_continuation(self, messages: list[Message]) -> None:
        if not self.continue_final_message:
            return
        if self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt cannot both be true"
            raise InvalidRequest(message, param="add_generation_prompt")
        if messages[-1].role != "assistant":
            message = f"continue_final_message needs a last message of role assistant, got {messages[-1].role}"
            raise InvalidRequest(message, param="continue_final_message")
