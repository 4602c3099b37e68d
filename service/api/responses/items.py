"""Items of a conversation: messages, calls of functions, what the functions answered. And what they are in chat."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from service.schema.conversation import MAX_NAME
from service.schema.fields import MAX_ITEMS, Body, Items, expect, only, optional
from service.schema.tools import Called, plain_call

Json = dict[str, Any]


class InputPart(Body):
    """What a user wrote, or what an answer gave."""

    harmless = only(annotations=([],), logprobs=([],))
    type: Literal["input_text", "output_text"] = Field(description="Text is the only type.")
    text: str = Field(description="Parts are joined without a space.")
    parsed: Any = optional("What an SDK made of the text; without effect.")


Parts = Annotated[
    str | Annotated[Items[InputPart], Field(max_length=MAX_ITEMS)],
    expect(
        f"a string or a list of at most {MAX_ITEMS} parts of type input_text or output_text (images and files are "
        "not supported)"
    ),
]


class InputMessage(Body):
    harmless = only(phase=("final_answer",), status=("completed", "incomplete"))
    type: Literal["message"] | None = optional('"message", which is also the default.')
    id: str | None = optional("What an answer called it.", max_length=MAX_NAME)
    role: Literal["user", "assistant", "system", "developer"] = Field(description="Who says it.")
    content: Parts = Field(description="A string, or a list of text parts.")


class CallItem(Called):
    """A call of an earlier answer."""

    harmless = only(
        **{"async": (False,)},
        async_=(False,),  # as the SDK dumps it
        caller=({"type": "direct"},),
        namespace=(),
        status=("completed", "incomplete"),
    )
    type: Literal["function_call"] = Field(description='"function_call".')
    id: str | None = optional("What an answer called it.", max_length=MAX_NAME)
    call_id: str = Field(min_length=1, max_length=MAX_NAME, description="Which the function's output refers to.")


class OutputItem(Body):
    """What a function answered."""

    harmless = CallItem.harmless
    type: Literal["function_call_output"] = Field(description='"function_call_output".')
    id: str | None = optional("What a client called it.", max_length=MAX_NAME)
    call_id: str = Field(max_length=MAX_NAME, description="The call's.")
    output: Parts = Field(description="A string, or a list of text parts.")


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
    """Chat messages: calls belong to the message of the assistant that they follow, if they do."""
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
