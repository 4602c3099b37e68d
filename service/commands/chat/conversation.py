"""A conversation: its messages, the fields of its requests, and the answers of a server with OpenAI's chat API."""

import json
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import httpx

from model.errors import QUOTED_CHARS, OptionError
from service.commands.endpoint import error_message, event_data, refusal

# The text of a model must not control the terminal: all control characters are removed but tab and new line.
CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if code not in (9, 10)}

THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Names of the thought in a delta: of most servers, and of some."""

ROLES = ("system", "developer", "user", "assistant", "tool")

Message = dict[str, Any]


class Piece(NamedTuple):
    """A piece of an answer, or of the thought before it."""

    text: str
    is_thought: bool = False


class PromptProgress(NamedTuple):
    """Tokens of the prompt that are computed, and all of them."""

    processed: int
    total: int


class End(NamedTuple):
    """The reason why the answer ended: `finish_reason`."""

    reason: str


Event = Piece | PromptProgress | End


class Refused(OptionError):
    """An error of the server in one of these statuses: it refuses the content of the request, another time, too."""

    STATUSES = (400, 413, 422)


class ChatSession:
    """The messages so far and the server that answers them.

    `fields` are part of every request: what the user set. `audio` and `images` are parts that go with the next message,
    before and after its text. With `shows_progress` the server also reports how much of a prompt it has computed.
    """

    def __init__(self, client: httpx.Client, model: str, system: str | None, fields: dict[str, Any]) -> None:
        self.client = client
        self.model = model
        self.system = system
        self.fields = fields
        self.shows_progress = False
        self.audio: list[Message] = []
        self.images: list[Message] = []
        self.messages: list[Message] = []

    def history(self) -> list[Message]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def replace(self, messages: list[Message]) -> None:
        """Go on from `messages`. The first may be a system message. Raises OptionError for what is no conversation."""
        check_messages(messages)
        begins = messages[0]["role"] == "system"
        self.system = messages[0]["content"] if begins else None
        self.messages = messages[begins:]

    def reset(self) -> None:
        self.messages, self.audio, self.images = [], [], []

    def say(self, text: str) -> None:
        """Add a message of the user. It replaces one that has no answer: most chat templates refuse two in a row."""
        self._drop("user")
        parts = [*self.audio, {"type": "text", "text": text}, *self.images]
        self.messages.append({"role": "user", "content": parts if len(parts) > 1 else text})
        self.audio, self.images = [], []

    def retract(self) -> None:
        """Remove the last answer, so that `answer` gives another. Raises OptionError without a message to answer."""
        self._drop("assistant")
        if not self.messages:
            raise OptionError("there is no message to answer again")

    def _drop(self, role: str) -> None:
        while self.messages and self.messages[-1]["role"] == role:
            self.messages.pop()

    def answer(self) -> Generator[Event, None, None]:
        """Yield thought and answer to the last message, piece by piece. Closing the generator stops the server too.

        What has come of the answer becomes part of the conversation, even if it was stopped. Raises OptionError with
        the server's error message.
        """
        text = ""
        try:
            for event in self._stream():
                text += event.text if isinstance(event, Piece) and not event.is_thought else ""
                yield event
        except httpx.RequestError as error:
            raise OptionError(f"the connection broke: {clean(str(error)) or type(error).__name__}") from error
        except (ValueError, RecursionError) as error:  # a number like NaN, half a character, or too many levels
            raise OptionError(f"the request cannot be written as JSON: {clean(str(error))}") from error
        finally:
            if text:
                self.messages.append({"role": "assistant", "content": text})

    def _stream(self) -> Iterator[Event]:
        body = {"model": self.model, "messages": self.history(), "stream": True, **self.fields}
        if self.shows_progress:
            body["return_progress"] = True
        with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            if not response.is_success:
                response.read()
                raise (Refused if response.status_code in Refused.STATUSES else OptionError)(clean(refusal(response)))
            has_ended = False
            for line in response.iter_lines():
                data = event_data(line)
                if data == "[DONE]":
                    return
                for event in _events(data) if data else ():
                    has_ended |= isinstance(event, End)
                    yield event
        if not has_ended:
            raise OptionError("the stream ended before the answer did; is it an OpenAI endpoint?")


def _events(data: str) -> list[Event]:
    """Return what the data of an event says. Raises OptionError with the message of an error, or for no chunk."""
    try:
        return list(_read(json.loads(data)))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(f"the server sent what is no part of an answer: {clean(data[:QUOTED_CHARS])}") from error


def _read(chunk: dict[str, Any]) -> Iterator[Event]:
    if chunk.get("error"):
        raise OptionError(clean(error_message(chunk)))
    if progress := chunk.get("prompt_progress"):
        yield PromptProgress(progress["processed"], progress["total"])
    for choice in chunk.get("choices") or ():
        yield from _pieces(choice.get("delta") or {})
        if reason := choice.get("finish_reason"):
            yield End(clean(reason))


def _pieces(delta: dict[str, Any]) -> Iterator[Piece]:
    thought = next((text for name in THOUGHT_FIELDS if (text := delta.get(name))), "")
    for text, is_thought in ((thought, True), (delta.get("content") or "", False)):
        if text:
            yield Piece(clean(text), is_thought)


def clean(text: str) -> str:
    """Return `text` without characters that control the terminal, or halves of a character, which no file takes."""
    return text.translate(CONTROLS).encode(errors="replace").decode()


def check_messages(messages: Any) -> None:
    """Raise OptionError for what is no list of messages that a request may have."""
    if not isinstance(messages, list) or not messages:
        raise OptionError('a conversation is a JSON list of messages: [{"role": "user", "content": "Hi"}]')
    for n, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES:
            raise OptionError(f"message {n}: role must be one of {', '.join(ROLES)}, got {json.dumps(role)[:40]}")
        if not isinstance(message.get("content"), str | list):
            raise OptionError(f"message {n}: content must be a string or a list of parts")
    try:
        json.dumps(messages, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise OptionError("a message has a number like NaN, half a character, or too many levels") from error
