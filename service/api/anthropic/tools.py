"""The content blocks and tools of Anthropic's Messages API."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from model.errors import quoted
from service.api.anthropic.client_tools import CLIENT_TOOLS, ClientType
from service.errors.errors import InvalidRequest
from service.schema.conversation import MAX_NAME, contents, media_part
from service.schema.fields import HINTS, MAX_ITEMS, Body, Items, Json, only, optional, unsupported
from service.schema.tools import NAME, AllowedCalls, Function, allowed_calls, plain_call, tool_type


class TextBlock(Body):
    """A block of text."""

    harmless = only(cache_control=HINTS, citations=([],))
    type: Literal["text"] = Field(description='"text".')
    text: str = Field(description="The text. Blocks are joined without a space.")


Texts = str | Annotated[Items[TextBlock], Field(max_length=MAX_ITEMS)]


class ThinkingBlock(Body):
    """The thought in an earlier answer."""

    harmless = only(cache_control=HINTS)
    type: Literal["thinking"] = Field(description='"thinking".')
    thinking: str = Field(description="The thought. The chat template decides what it uses.")
    signature: str | None = optional("The signature of the block. It is not checked.")


class RedactedBlock(Body):
    """A thought that another server has encrypted: nobody here can read it."""

    harmless = only(cache_control=HINTS)
    type: Literal["redacted_thinking"] = Field(description='"redacted_thinking".')
    data: str = Field(description="The encrypted thought. It has no effect.")


class ImageSource(Body):
    """The bytes of an image."""

    type: Literal["base64"] = Field(description='"base64", the only type: nothing is fetched.')
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"] = Field(
        description="image/jpeg, image/png, image/gif or image/webp. The data decide."
    )
    data: str = Field(description="The bytes in base64.")

    @field_validator("type", mode="before")
    @classmethod
    def _remote(cls, value: Any) -> Any:
        if value in ("url", "file"):
            what = "Noria never fetches images: send the bytes in data"
            raise unsupported(None, f'{quoted(value)} is not supported: only "base64". {what}')
        return value


class ImageBlock(Body):
    """An image. A user message, or the result of a tool, may have it."""

    harmless = only(cache_control=HINTS)
    type: Literal["image"] = Field(description='"image".')
    source: ImageSource = Field(description="The bytes of the image.")


class TextSource(Body):
    """The text of a document."""

    type: Literal["text"] = Field(description='"text".')
    media_type: Literal["text/plain"] = Field(description="text/plain.")
    data: str = Field(description="The text.")


class ContentSource(Body):
    """The text of a document, in blocks."""

    type: Literal["content"] = Field(description='"content".')
    content: Texts = Field(description="The text, or a list of text blocks.")


class DocumentBlock(Body):
    """A document of text. A user message, or the result of a tool, may have it."""

    harmless = only(cache_control=HINTS, citations=({"enabled": False},))
    type: Literal["document"] = Field(description='"document".')
    source: TextSource | ContentSource = Field(description="The text. PDF files are not supported.")
    title: str | None = optional("The title, which the model reads before the text.")
    context: str | None = optional("Facts about the document. The model reads them before the text.")

    @property
    def text(self) -> str:
        """Return the document in the tags that Anthropic's guide to long prompts uses."""
        source = self.source
        blocks = source.data if isinstance(source, TextSource) else source.content
        words = blocks if isinstance(blocks, str) else "".join(block.text for block in blocks)
        about = {"title": self.title, "context": self.context, "document_content": f"\n{words}\n"}
        inner = "".join(f"<{name}>{value}</{name}>\n" for name, value in about.items() if value)
        return f"<document>\n{inner}</document>\n"


def pieces_of(content: str | Sequence[Body] | None, place: str) -> list[str | Json]:
    """Return texts, documents and images of a content, as `contents` takes them. `place` is the client's name of it."""
    if content is None or isinstance(content, str):
        return [content] if content else []
    pieces: list[str | Json] = []
    for index, block in enumerate(content):
        if isinstance(block, TextBlock | DocumentBlock) and block.text:
            pieces.append(block.text)
        elif isinstance(block, ImageBlock):
            url = f"data:{block.source.media_type};base64,{block.source.data}"
            pieces.append(media_part("image", url, f"{place}[{index}].source.data"))
    return pieces


class ToolUse(Body):
    """A tool call in an earlier answer."""

    harmless = only(cache_control=HINTS, caller=({"type": "direct"},), toolset_name=())
    type: Literal["tool_use"] = Field(description='"tool_use".')
    id: str = Field(min_length=1, max_length=MAX_NAME, description="The id of the call. Its result repeats it.")
    name: str = Field(max_length=64, description="The name of the tool.")
    input: Json = Field(description="The arguments of the call.")

    def plain(self) -> Json:
        try:
            json.dumps(self.input, allow_nan=False)
        except ValueError as error:
            message = f"messages has a tool_use block {quoted(self.id)} whose input is not JSON: {error}"
            raise InvalidRequest(message, param="messages") from None
        return plain_call(self.id, self.name, self.input)


Results = str | Annotated[Items[TextBlock | ImageBlock | DocumentBlock], Field(max_length=MAX_ITEMS)]


class ToolResult(Body):
    """The result of a tool."""

    harmless = only(cache_control=HINTS, toolset_name=())
    type: Literal["tool_result"] = Field(description='"tool_result".')
    tool_use_id: str = Field(max_length=MAX_NAME, description="The id of the call.")
    content: Results | None = optional("The text, or a list of text, image and document blocks.")
    is_error: bool | None = optional('true: the content for the model begins with "Error: ".')

    def plain(self, place: str) -> Json:
        """Return the message of a tool. `place` is the client's name of the block."""
        pieces = [*(["Error: "] if self.is_error else []), *pieces_of(self.content, f"{place}.content")]
        return {"role": "tool", "tool_call_id": self.tool_use_id, **contents(pieces)}


class Offer(Body):
    """The fields that a tool of any kind may have."""

    harmless = only(
        allowed_callers=(["direct"],), cache_control=HINTS, eager_input_streaming=(True,), input_examples=([],)
    )
    defer_loading: bool | None = optional(
        "It has no effect: this server has no search of tools, so the text of each tool is part of the prompt."
    )
    strict: bool | None = optional("true: the arguments of calls follow the schema, even when `tool_choice` is auto.")


class ToolOffer(Offer):
    """A tool that the model may call."""

    type: Annotated[Literal["custom"] | None, tool_type("custom", *CLIENT_TOOLS)] = optional(
        '"custom". The tools that Anthropic runs are not supported.'
    )
    name: str = Field(pattern=NAME, description="The name of the tool: up to 64 letters, digits, `_`, `-` and `.`.")
    description: str | None = optional("A description of the tool for the model.")
    input_schema: Json = Field(description="The arguments, as the JSON schema of an object.")

    @property
    def function(self) -> Function:
        about: Json = {"name": self.name, "description": self.description, "strict": self.strict}
        return Function.model_construct(**about, parameters=self.input_schema)


class ClientTool(Offer):
    """A tool of Anthropic that the client runs, with the published schema."""

    type: ClientType = Field(description="The tool and its edition.")
    name: Literal["bash", "memory", "str_replace_based_edit_tool"] = Field(description="The name of the tool.")
    max_characters: int | None = optional(
        "Where the client cuts a file that it views, with type text_editor_20250728. It has no effect here.", ge=1
    )

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        name = CLIENT_TOOLS[self.type].name
        if self.name != name:
            raise unsupported("name", f"name must be {quoted(name)} with type {self.type}, got {quoted(self.name)}")
        if self.max_characters is not None and self.type != "text_editor_20250728":
            only_with = "max_characters is allowed only with type text_editor_20250728"
            raise unsupported("max_characters", f"{only_with}, got type {self.type}")
        return self

    @property
    def function(self) -> Function:
        return CLIENT_TOOLS[self.type].model_copy(update={"strict": self.strict})


def _tag(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return "client tool" if isinstance(kind, str) and kind in CLIENT_TOOLS else "custom tool"


AnyTool = Annotated[
    Annotated[ToolOffer, Tag("custom tool")] | Annotated[ClientTool, Tag("client tool")], Discriminator(_tag)
]


class ToolChoice(Body):
    """Which tools the model may call."""

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="auto, any (it must call a tool), none, or tool (it must call the tool `name`)."
    )
    name: str | None = optional("The name of the tool. Required with type tool.", max_length=64)
    disable_parallel_tool_use: bool | None = optional("true: the answer has at most one call. Default: false.")

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if self.name is None and self.type == "tool":
            raise unsupported("name", "name is required with type tool")
        if self.name is not None and self.type != "tool":
            raise unsupported("name", f"name is allowed only with type tool, got type {quoted(self.type)}")
        return self

    def allowed_calls(self, offered: Sequence[Function]) -> AllowedCalls:
        """Return the functions that the answer may call. Raises InvalidRequest."""
        chosen = {"none": [], "tool": [self.name or ""]}.get(self.type)
        one = self.type == "tool" or bool(self.disable_parallel_tool_use)
        return allowed_calls(offered, chosen, must=self.type in ("any", "tool"), one=one)
