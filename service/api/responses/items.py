"""Items of a conversation: messages, function calls and their outputs."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from service.schema.conversation import MAX_NAME
from service.schema.fields import MAX_ITEMS, Body, Items, expect, only, optional
from service.schema.tools import Called, plain_call

Json = dict[str, Any]


class InputPart(Body):
    """A text part of a message."""

    harmless = only(annotations=([],), logprobs=([],))
    type: Literal["input_text", "output_text"] = Field(description="input_text or output_text.")
    text: str = Field(description="The text. The parts of a message are joined without a space.")
    parsed: Any = optional("The text as an SDK parsed it. It has no effect.")


Parts = Annotated[
    str | Annotated[Items[InputPart], Field(max_length=MAX_ITEMS)],
    expect(
        f"a string or a list of at most {MAX_ITEMS} parts of type input_text or output_text (images and files are "
        "not supported)"
    ),
]


class InputMessage(Body):
    """A message."""

    harmless = only(phase=("final_answer",), status=("completed", "incomplete"))
    type: Literal["message"] | None = optional('"message". Default: "message".')
    id: str | None = optional("The id of the item in an answer. It has no effect.", max_length=MAX_NAME)
    role: Literal["user", "assistant", "system", "developer"] = Field(
        description="user, assistant, system or developer."
    )
    content: Parts = Field(description="The text, or a list of text parts.")


class CallItem(Called):
    """A function call in an earlier answer."""

    harmless = only(
        **{"async": (False,)},
        async_=(False,),  # as the SDK dumps it
        caller=({"type": "direct"},),
        namespace=(),
        status=("completed", "incomplete"),
    )
    type: Literal["function_call"] = Field(description='"function_call".')
    id: str | None = optional("The id of the item in an answer. It has no effect.", max_length=MAX_NAME)
    call_id: str = Field(
        min_length=1, max_length=MAX_NAME, description="The id of the call. The output of the function repeats it."
    )


class OutputItem(Body):
    """The output of a function."""

    harmless = CallItem.harmless
    type: Literal["function_call_output"] = Field(description='"function_call_output".')
    id: str | None = optional("The id of the item. It has no effect.", max_length=MAX_NAME)
    call_id: str = Field(max_length=MAX_NAME, description="The id of the call.")
    output: Parts = Field(description="The text, or a list of text parts.")


def _kind(item: Any) -> str | None:
    kind = (item.get("type") or "message") if isinstance(item, dict) else None
    return kind if isinstance(kind, str) else None


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutputItem, Tag("function_call_output")],
    Discriminator(
        _kind,
        custom_error_type="expected",
        custom_error_message="must be an item of type message, function_call or function_call_output",
    ),
]


def as_messages(items: Sequence[InputMessage | CallItem | OutputItem]) -> list[Json]:
    """Messages as chat formats take them. Calls join the assistant message before them, or make a new one."""
    messages: list[Json] = []
    for item in items:
        if isinstance(item, OutputItem):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output)})
        elif isinstance(item, InputMessage):
            messages.append({"role": item.role, "content": text_of(item.content)})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            call = plain_call(item.call_id, item.name, item.arguments)
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages


def text_of(parts: str | list[InputPart]) -> str:
    return parts if isinstance(parts, str) else "".join(part.text for part in parts)
