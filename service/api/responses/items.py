"""Items of a conversation: messages, function calls and their outputs."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from model.chat.reasoning import THOUGHT
from model.errors import quoted
from service.api.responses.tools import flat_name
from service.errors.wording import either
from service.schema.conversation import DATA_URL, DETAILS, MAX_NAME, AudioPart, check_media_role, contents, media_part
from service.schema.fields import BREAKPOINTS, MAX_ITEMS, Body, Items, Json, only, optional, unsupported
from service.schema.tools import Called, plain_call

SUMMARY = "noria-summary:"
"""The mark before the text of a summary."""


class InputPart(Body):
    """A text part of a message, or of the output of a function."""

    harmless = only(annotations=([],), prompt_cache_breakpoint=BREAKPOINTS)
    type: Literal["input_text", "output_text"] = Field(description="input_text or output_text.")
    text: str = Field(description="The text. The parts of a message are joined without a space.")
    parsed: Any = optional("The text as an SDK parsed it. It has no effect.")
    logprobs: list[Any] | None = optional("The log probabilities of an earlier answer. They have no effect.")


class InputImage(Body):
    """An image. A user message, or the output of a function, may have it."""

    harmless = only(**DETAILS, file_id=(), prompt_cache_breakpoint=BREAKPOINTS)
    type: Literal["input_image"] = Field(description='"input_image".')
    image_url: str = Field(description=DATA_URL)


Parts = str | Annotated[Items[InputPart | InputImage | AudioPart], Field(max_length=MAX_ITEMS)]


class InputMessage(Body):
    """A message."""

    harmless = only(phase=("commentary", "final_answer"), status=("completed", "incomplete"))
    type: Literal["message"] | None = optional('"message". Default: "message".')
    id: str | None = optional("The id of the item in an answer. It has no effect.", max_length=MAX_NAME)
    role: Literal["user", "assistant", "system", "developer"] = Field(description="user, assistant, system, developer.")
    content: Parts = Field(description="The text, or a list of parts.")

    @model_validator(mode="after")
    def _check_media(self) -> Self:
        check_media_role(self.role, self.content, {"image": InputImage, "audio": AudioPart})
        return self


class CallItem(Called):
    """A function call in an earlier answer."""

    harmless = only(
        **{"async": (False,)},
        async_=(False,),  # as the SDK dumps it
        caller=({"type": "direct"},),
        status=("completed", "incomplete"),
    )
    type: Literal["function_call"] = Field(description='"function_call".')
    namespace: str | None = optional("The namespace of the function.", max_length=MAX_NAME)
    id: str | None = optional("The id of the item in an answer. It has no effect.", max_length=MAX_NAME)
    call_id: str = Field(min_length=1, max_length=MAX_NAME, description="The id of the call. Its output repeats it.")


class OutputItem(Body):
    """The output of a function, or of a custom tool."""

    harmless = only(**CallItem.harmless, namespace=())
    type: Literal["function_call_output", "custom_tool_call_output"] = Field(
        description="function_call_output or custom_tool_call_output."
    )
    id: str | None = optional("The id of the item. It has no effect.", max_length=MAX_NAME)
    call_id: str = Field(max_length=MAX_NAME, description="The id of the call.")
    output: Parts = Field(description="The text, or a list of parts.")


class CustomCallItem(Body):
    """The call of a custom tool in an earlier answer."""

    harmless = only(**CallItem.harmless, namespace=())
    type: Literal["custom_tool_call"] = Field(description='"custom_tool_call".')
    id: str | None = optional("The id of the item in an answer. It has no effect.", max_length=MAX_NAME)
    call_id: str = Field(min_length=1, max_length=MAX_NAME, description="The id of the call.")
    name: str = Field(max_length=64, description="The name of the tool.")
    input: str = Field(description="The text of the call.")


class SummaryText(Body):
    type: Literal["summary_text"] = Field(description='"summary_text".')
    text: str = Field(description="The text.")


class ReasoningText(Body):
    type: Literal["reasoning_text", "text"] = Field(description="reasoning_text or text.")
    text: str = Field(description="The text.")


class ReasoningItem(Body):
    """The thought before an answer."""

    harmless = only(status=("completed", "incomplete"))
    type: Literal["reasoning"] = Field(description='"reasoning".')
    id: str | None = optional("The id of the item in an answer. It has no effect.", max_length=MAX_NAME)
    summary: Items[SummaryText] | None = optional("It is the thought where `content` is missing.", max_length=MAX_ITEMS)
    content: Items[ReasoningText] | None = optional("The thought, which the template may use.", max_length=MAX_ITEMS)
    encrypted_content: str | None = optional("A thought that another server has encrypted. It has no effect.")

    @property
    def thought(self) -> str:
        parts: Sequence[ReasoningText | SummaryText] = self.content or self.summary or ()
        return "".join(part.text for part in parts)


class CompactionItem(Body):
    """The summary of a conversation, as `/v1/responses/compact` makes it."""

    harmless = only(created_by=())
    type: Literal["compaction"] = Field(description='"compaction".')
    id: str | None = optional("The id of the item. It has no effect.", max_length=MAX_NAME)
    encrypted_content: str = Field(description="The summary. This server's is readable text after a mark.")

    @model_validator(mode="after")
    def _check_summary(self) -> Self:
        if not self.encrypted_content.startswith(SUMMARY):
            raise unsupported("encrypted_content", "encrypted_content must be that of a compaction by this server")
        return self

    @property
    def summary(self) -> str:
        return self.encrypted_content.removeprefix(SUMMARY)


class ItemReference(Body):
    """An item that is stored here."""

    type: Literal["item_reference"] = Field(description='"item_reference".')
    id: str = Field(max_length=MAX_NAME, description="The id of the item in an earlier answer or conversation.")


def _kind(item: Any) -> str | None:
    kind = (item.get("type") or "message") if isinstance(item, dict) else None
    return kind if isinstance(kind, str) else None


ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
}
"""Types of items -> the beginnings of their ids."""
ITEM_TYPES = (*ID_PREFIXES, "item_reference")


def _check_type(item: Any) -> Any:
    """Return the item. Raises an error that names its type, if no item has that type."""
    if isinstance(item, dict) and _kind(item) not in ITEM_TYPES:
        raise unsupported("type", f"type {quoted(item['type'])} is not supported: only {either(ITEM_TYPES)}")
    return item


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[OutputItem, Tag("custom_tool_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_kind, custom_error_type="expected", custom_error_message="must be an object"),
    BeforeValidator(_check_type),
]
SUMMARIZED = "Summary of the conversation so far:"
AnyItem = InputMessage | CallItem | OutputItem | CustomCallItem | ReasoningItem | CompactionItem | ItemReference


def as_messages(items: Sequence[AnyItem], n_earlier: int = 0) -> list[Json]:
    """Return messages as chat formats take them. Calls join the assistant message before them, or make a new one.

    A thought belongs to the message or the call after it. The client has sent all items but the first `n_earlier`.
    """
    messages: list[Json] = []
    thought = ""
    for index, item in enumerate(items, start=-n_earlier):
        if isinstance(item, ReasoningItem):
            thought = "\n\n".join(filter(None, [thought, item.thought]))
        elif isinstance(item, OutputItem):
            output = _contents(item.output, f"input[{index}].output")
            messages.append({"role": "tool", "tool_call_id": item.call_id, **output})
        elif isinstance(item, InputMessage):
            messages.append({"role": item.role, **_contents(item.content, f"input[{index}].content")})
            thought = _with_thought(messages[-1], thought)
        elif isinstance(item, CompactionItem):
            messages.append({"role": "assistant", **contents([f"{SUMMARIZED}\n{item.summary}"])})
            thought = ""
        elif isinstance(item, CallItem | CustomCallItem):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            thought = _with_thought(messages[-1], thought)
            messages[-1].setdefault("tool_calls", []).append(_plain_call(item))
    return messages


def _with_thought(message: Json, thought: str) -> str:
    """Add the thought to a message of the assistant. Returns the thought that is left: a user's message ends it."""
    if thought and message["role"] == "assistant":
        message[THOUGHT] = "\n\n".join(filter(None, [message.get(THOUGHT), thought]))
    return ""


def _plain_call(item: CallItem | CustomCallItem) -> Json:
    if isinstance(item, CustomCallItem):
        return plain_call(item.call_id, item.name, {"input": item.input})
    return plain_call(item.call_id, flat_name(item.namespace, item.name), item.arguments)


def _contents(parts: str | list[InputPart | InputImage | AudioPart], place: str) -> Json:
    """Return the text, the images and the audio of a message. `place` is the client's name of the parts."""
    if isinstance(parts, str):
        return contents([parts])
    return contents(_piece(part, f"{place}[{index}]") for index, part in enumerate(parts))


def _piece(part: InputPart | InputImage | AudioPart, place: str) -> str | Json:
    """Return a part as `contents` takes it."""
    if isinstance(part, InputPart):
        return part.text
    if isinstance(part, InputImage):
        return media_part("image", part.image_url, f"{place}.image_url")
    return media_part("audio", part.data, f"{place}.input_audio")
