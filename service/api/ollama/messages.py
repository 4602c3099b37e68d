"""The messages of Ollama's chats, which name calls by their order or not at all."""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from model.chat.reasoning import THOUGHT
from service.schema.conversation import MAX_NAME, contents, media_part
from service.schema.fields import MAX_ITEMS, Body, Items, Json, optional
from service.schema.tools import MAX_CALLS, Called, plain_call

IMAGES = "Images in base64. Nothing is fetched."


class OllamaFunction(Called):
    """The function that was called."""

    index: int | None = optional("The place of the call in its answer. It has no effect.", ge=0)
    description: str | None = optional("A description of the function. It has no effect.")


class OllamaCall(Body):
    """A call in an earlier answer."""

    id: str | None = optional("The id of the call.", min_length=1, max_length=MAX_NAME)
    type: Literal["function"] | None = optional('"function".')
    index: int | None = optional("The place of the call in its answer. It has no effect.", ge=0)
    function: OllamaFunction = Field(description="The function that was called, and its arguments.")


class OllamaMessage(Body):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"] = Field(description="system, user, assistant or tool.")
    content: str | None = optional("The text.")
    thinking: str | None = optional("The thought of an earlier answer. The chat template decides what it uses.")
    images: Items[str] | None = optional(IMAGES, max_length=MAX_ITEMS)
    tool_calls: Items[OllamaCall] | None = optional("The calls of an assistant message.", max_length=MAX_CALLS)
    tool_name: str | None = optional("The function whose result a tool message is.", max_length=MAX_NAME)
    tool_call_id: str | None = optional("The id of the call that a tool message answers.", max_length=MAX_NAME)


def with_images(text: str | None, images: Iterable[str] | None, field: str) -> Json:
    """Return the content of a plain message: its images and its text. `field` is the client's name of the images."""
    parts = [media_part("image", f"data:image/any;base64,{it}", f"{field}[{at}]") for at, it in enumerate(images or ())]
    return contents([*parts, text or ""])


def plain_messages(messages: Iterable[OllamaMessage]) -> list[Json]:
    """Return the messages as `ChatFormat.encode` takes them.

    A call without an id gets one. A result without an id answers the first call without a result, of those of its tool.
    """
    plain: list[Json] = []
    waiting: list[Json] = []
    for index, message in enumerate(messages):
        others: dict[str, Any] = {"name": message.tool_name}
        if message.role == "assistant":
            waiting = [
                plain_call(call.id or f"call_{index}_{place}", call.function.name, call.function.arguments)
                for place, call in enumerate(message.tool_calls or ())
            ]
            others |= {THOUGHT: message.thinking, "tool_calls": waiting[:]}
        elif message.role == "tool":
            others["tool_call_id"] = _answered(message, waiting) or f"call_{index}"
        content = with_images(message.content, message.images, f"messages[{index}].images")
        plain.append({"role": message.role, **content} | {name: value for name, value in others.items() if value})
    return plain


def _answered(message: OllamaMessage, waiting: list[Json]) -> str | None:
    """Return the id of the call that a result answers, and take the call from those that wait."""
    for at, call in enumerate(waiting):
        unnamed = message.tool_call_id is None and message.tool_name in (call["function"]["name"], None)
        if unnamed or message.tool_call_id == call["id"]:
            return waiting.pop(at)["id"]
    return message.tool_call_id
