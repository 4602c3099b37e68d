"""The messages of a chat request, and the options of the chat template."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from model.chat.media import MANY, MEDIA_ROLES
from model.chat.reasoning import PARTS, THOUGHT
from model.errors import quoted
from service.errors.errors import InvalidRequest
from service.schema.fields import CACHED, MAX_ITEMS, Body, Items, only, optional, unsupported
from service.schema.tools import MAX_CALLS, EarlierCall

MAX_NAME = 256


class TextPart(Body):
    harmless = CACHED
    type: Literal["text"] = Field(description='"text".')
    text: str = Field(description="The text. The parts of a message are joined.")


class ThinkingPart(Body):
    """A thought, as Mistral's API has it. A system or an assistant message may have it."""

    type: Literal["thinking"] = Field(description='"thinking".')
    thinking: str | Annotated[Items[TextPart], Field(max_length=MAX_ITEMS)] = Field(
        description="The thought: a string, or a list of text parts."
    )
    closed: bool | None = optional(
        "false: the answer continues the thought. It needs `continue_final_message`, and a last part of the last "
        "message. Default: true."
    )
    signature: str | None = optional("A mark of the server that wrote the thought. It has no effect.")

    @property
    def is_open(self) -> bool:
        return self.closed is False


DETAILS = only(detail=("auto", "high"))
"""Every image has all its detail, up to the size that the model was trained with."""
DATA_URL = "The image as a data URL in base64, `data:image/png;base64,...`. Nothing is fetched."


class ImageUrl(Body):
    """An image and its detail."""

    harmless = DETAILS
    url: str = Field(description=DATA_URL)


class ImagePart(Body):
    """An image. A user message, or the result of a tool, may have it."""

    harmless = CACHED
    type: Literal["image_url"] = Field(description='"image_url".')
    image_url: str | ImageUrl = Field(description="The data URL, or an object with it.")

    @property
    def url(self) -> str:
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


class InputAudio(Body):
    """A file with audio."""

    data: str = Field(description="The file in base64, or a data URL with it. Nothing is fetched.")
    format: str | None = optional("The format of the file. It has no effect: the content tells.", max_length=MAX_NAME)


class AudioPart(Body):
    """A recording. A user message may have it, for a model that hears."""

    harmless = CACHED
    type: Literal["input_audio"] = Field(description='"input_audio".')
    input_audio: str | InputAudio = Field(description="An object with the file, or the file itself, in base64.")

    @property
    def data(self) -> str:
        return self.input_audio if isinstance(self.input_audio, str) else self.input_audio.data

    @property
    def format(self) -> str | None:
        return None if isinstance(self.input_audio, str) else self.input_audio.format


Part = TextPart | ThinkingPart | ImagePart | AudioPart
Content = str | Annotated[Items[Part], Field(max_length=MAX_ITEMS)]
ROLES = ("system", "developer", "user", "assistant", "tool")


class Message(Body):
    """One message of a conversation. An assistant or a tool message may have null as its content."""

    harmless = only(
        **CACHED,
        refusal=(),
        annotations=([],),
        audio=(),
        function_call=(),
        thinking_blocks=([],),
        images=([],),
        provider_specific_fields=({}, {"refusal": None}, {"citations": None, "thinking_blocks": None}),  # LiteLLM's
    )
    role: str = Field(description="system, developer, user, assistant or tool.")
    content: Content | None = optional("The text, or a list of parts. An assistant or a tool message may have null.")
    name: str | None = optional("The name of the author. The chat template may use it.", max_length=MAX_NAME)
    tool_calls: Items[EarlierCall] | None = optional("The calls of an assistant message.", max_length=MAX_CALLS)
    tool_call_id: str | None = optional("The id of the call that a tool message answers.", max_length=MAX_NAME)
    reasoning_content: str | None = optional("The thought before the content. The chat template decides what it uses.")
    reasoning: str | None = optional("Another name for `reasoning_content`.")
    prefix: bool | None = optional("Mistral's field. true: the answer continues this last message, of role assistant.")
    parsed: Any = optional("The content as an SDK parsed it. It has no effect.")

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.role not in ROLES:
            raise unsupported("role", f"role {quoted(self.role)} is not supported: expected one of {', '.join(ROLES)}")
        if self.content is None and self.role not in ("assistant", "tool"):
            raise unsupported("content", f"content is required in a message of role {self.role}")
        if (self.tool_call_id is None) == (self.role == "tool"):
            verb = "needs" if self.role == "tool" else "has no"
            raise unsupported("tool_call_id", f"a message of role {self.role} {verb} tool_call_id")
        if self.tool_calls and self.role != "assistant":
            only = f"tool_calls is allowed only in messages of role assistant, got role {self.role}"
            raise unsupported("tool_calls", only)
        self._check_thoughts()
        check_media_role(self.role, self.content, {"image": ImagePart, "audio": AudioPart})
        return self

    def _check_thoughts(self) -> None:
        given = {
            "reasoning_content": self.reasoning_content,
            "reasoning": self.reasoning,
            "content": self._thought_in_content,
        }
        names = [name for name, text in given.items() if text]
        allowed = self.role == "assistant" or (self.role in ("system", "developer") and names == ["content"])
        if names and not allowed:
            only = f"{names[0]} with thoughts is allowed only in messages of role assistant, got role {self.role}"
            raise unsupported(names[0], only)
        if len({given[name] for name in names}) > 1:
            raise unsupported(names[0], f"{names[0]} and {names[1]} have different thoughts: send one of them")

    @property
    def thinking(self) -> list[ThinkingPart]:
        parts = self.content if isinstance(self.content, list) else []
        return [part for part in parts if isinstance(part, ThinkingPart)]

    @property
    def ends_open(self) -> bool:
        """Return whether its last part is a thought that is not closed."""
        last = self.content[-1] if isinstance(self.content, list) and self.content else None
        return isinstance(last, ThinkingPart) and last.is_open

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or self._thought_in_content

    @property
    def _thought_in_content(self) -> str:
        return "".join(_part_text(part) for part in self.thinking)

    def plain(self, place: str) -> dict[str, Any]:
        """Return the message as `ChatFormat.encode` takes it. `place` is the client's name of it."""
        plain: dict[str, Any] = {"role": self.role, **contents(self._pieces(place))}
        calls = [call.plain() for call in self.tool_calls or ()]
        others = {"name": self.name, "tool_call_id": self.tool_call_id, "tool_calls": calls or None}
        if isinstance(self.content, list) and self.thinking and (self.role != "assistant" or self.ends_open):
            others[PARTS] = [_plain_part(part) for part in self.content if isinstance(part, TextPart | ThinkingPart)]
        else:
            others[THOUGHT] = self.thought or None
        return plain | {name: value for name, value in others.items() if value is not None}

    def _pieces(self, place: str) -> Iterable[str | dict[str, Any]]:
        """Return the content as `contents` takes it, without thoughts."""
        if not isinstance(self.content, list):
            return [self.content or ""]
        parts = enumerate(self.content)
        return [_piece(part, f"{place}.content[{at}]") for at, part in parts if not isinstance(part, ThinkingPart)]


def plain_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the messages of a field `messages` as `ChatFormat.encode` takes them."""
    return [message.plain(f"messages[{index}]") for index, message in enumerate(messages)]


def check_media_role(role: str, content: str | Sequence[Body] | None, kinds: Mapping[str, type[Body]]) -> None:
    """Raise the error for images or audio, parts of these types, in a message of a role that never has any."""
    for kind, part_type in kinds.items():
        roles = MEDIA_ROLES[kind]
        if role not in roles and isinstance(content, list) and any(isinstance(part, part_type) for part in content):
            verb = "is" if kind == "audio" else "are"
            where = f"messages of role {' or '.join(roles)}"
            raise unsupported("content", f"{MANY[kind]} {verb} allowed only in {where}, got role {role}")


def media_part(kind: str, content: str, field: str) -> dict[str, Any]:
    """Return an image or audio of a message as `contents` takes it. `field` is the client's name of its content."""
    return {"type": kind, "content": content, "field": field}


def _piece(part: TextPart | ImagePart | AudioPart, place: str) -> str | dict[str, Any]:
    """Return a part as `contents` takes it."""
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, ImagePart):
        return media_part("image", part.url, f"{place}.image_url")
    return media_part("audio", part.data, f"{place}.input_audio")


def contents(pieces: Iterable[str | dict[str, Any]]) -> dict[str, Any]:
    """Return a plain message's fields with these texts, images and audio, in order. Texts side by side are one part."""
    parts: list[dict[str, Any]] = []
    for _, group in groupby(pieces, key=type):
        alike = [*group]
        text = "".join(piece for piece in alike if isinstance(piece, str))
        parts += [{"type": "text", "text": text}] if text else [piece for piece in alike if not isinstance(piece, str)]
    plain: dict[str, Any] = {"content": "".join(part.get("text", "") for part in parts)}
    return plain | {PARTS: parts} if any(part["type"] in MEDIA_ROLES for part in parts) else plain


def _plain_part(part: TextPart | ThinkingPart) -> dict[str, Any]:
    """Return the part as chat formats take it."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "thinking", "thinking": _part_text(part), "closed": not part.is_open}


def _part_text(part: TextPart | ThinkingPart) -> str:
    if isinstance(part, TextPart):
        return part.text
    return part.thinking if isinstance(part.thinking, str) else "".join(text.text for text in part.thinking)


class TemplateOptions(NamedTuple):
    """Keyword arguments of `ChatFormat.encode`."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = MappingProxyType({})


class TemplateBody(Body):
    """Options of the chat template."""

    add_generation_prompt: bool | None = optional(
        "End the prompt with the words that open the answer. Default: true, unless `continue_final_message` is true."
    )
    continue_final_message: bool | None = optional("true: the answer continues the last message, an assistant's.")
    chat_template_kwargs: dict[str, Any] | None = optional(
        "Values for variables of the model's chat template: numbers, true, false, null, or strings of up to 1024 "
        "characters."
    )

    def continues(self, messages: Sequence[Message]) -> bool:
        """Return whether the answer continues the last message."""
        return bool(self.continue_final_message or (messages and messages[-1].prefix))

    def template_options(self, messages: Sequence[Message]) -> TemplateOptions:
        continues = self.continues(messages)
        opens = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        return TemplateOptions(opens, continues, self.chat_template_kwargs or {})

    def check_continuation(self, messages: list[Message]) -> None:
        self._check_prefixes(messages)
        self._check_open_thoughts(messages)
        if not self.continues(messages):
            return
        if self.add_generation_prompt:
            name = "continue_final_message" if self.continue_final_message else f"messages[{len(messages) - 1}].prefix"
            message = f"{name} and add_generation_prompt cannot both be true"
            raise InvalidRequest(message, param="add_generation_prompt")
        if messages[-1].role != "assistant":
            message = f"continue_final_message needs a last message of role assistant, got {messages[-1].role}"
            raise InvalidRequest(message, param="continue_final_message")

    def _check_prefixes(self, messages: Sequence[Message]) -> None:
        for index, message in enumerate(messages):
            name = f"messages[{index}].prefix"
            if message.prefix and (message.role != "assistant" or index + 1 < len(messages)):
                refusal = (
                    f"{name} may be true only in the last message, of role assistant; this is message {index + 1} of "
                    f"{len(messages)}, of role {message.role}"
                )
                raise InvalidRequest(refusal, param=name)
            if message.prefix and self.continue_final_message is False:
                refusal = f"{name} is true and continue_final_message is false: send one of them"
                raise InvalidRequest(refusal, param="continue_final_message")

    def _check_open_thoughts(self, messages: list[Message]) -> None:
        last = messages[-1] if self.continues(messages) else None
        for index, message in enumerate(messages):
            n_open = sum(part.is_open for part in message.thinking)
            if n_open and not (message is last and n_open == 1 and message.ends_open):
                refusal = (
                    f"messages[{index}] has a thinking part with closed false: only the last part of the last message, "
                    "of role assistant, may be open, with continue_final_message true; close it, or leave out closed"
                )
                raise InvalidRequest(refusal, param="messages")
