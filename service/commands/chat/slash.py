"""The commands of a chat: `/set temperature 0.2`. Each is a method; what follows its name is its argument."""

import base64
import difflib
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, WordCompleter
from prompt_toolkit.document import Document

from model.errors import OptionError, one_line
from model.sampling_params import PARAMETERS
from service.commands.chat.conversation import ChatSession, check_messages
from service.commands.chat.models import described, switch
from service.commands.endpoint import list_models

MAX_FILE_BYTES = 5 * 2**20
IMAGE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
}
"""Ends of file names -> MIME types. Python's own table has no WebP before 3.13."""
AUDIO_TYPES = (".wav", ".flac", ".ogg", ".opus", ".mp3")
"""Ends of names of files with audio."""
DEFAULT = "default"
OWN_FIELDS = ("model", "messages", "stream", "n")
"""Fields that the chat sends itself, or whose answer it could not show."""
OFFERED = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "stop", "reasoning_effort"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
"""Fields that Tab completes. `/set` takes any: it checks the bounds of some, and the server refuses what is wrong."""


class Outcome(NamedTuple):
    """The text of a command, and what the chat does next."""

    text: str = ""
    then: Literal["read", "answer", "leave"] = "read"


class Command(NamedTuple):
    """A command as `/help` lists it, and its method of `Slash`."""

    usage: str
    help: str
    run: "Callable[[Slash, str], Outcome]"


class Words(Completer):
    """The commands that begin with what is typed; after a command, what its completer offers."""

    def __init__(self, arguments: dict[str, Completer]) -> None:
        self._arguments = arguments

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        begun, space, argument = document.text_before_cursor.partition(" ")
        if not space:
            names = (f"/{name}" for name in COMMANDS)
            yield from (Completion(name, -len(begun)) for name in names if name.startswith(begun))
        elif completer := self._arguments.get(begun[1:]):
            yield from completer.get_completions(Document(argument.lstrip()), complete_event)


class Slash:
    """The commands of one conversation."""

    def __init__(self, conversation: ChatSession) -> None:
        self._chat = conversation

    def obey(self, line: str) -> Outcome:
        """Run the command in `line`, which starts with a slash. Raises NoriaError if it cannot be done."""
        name, _, argument = line[1:].partition(" ")
        command = COMMANDS.get(name.strip())
        if command is None:
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean /{close[0]}?" if close else "/help lists them, // begins a message with /"
            raise OptionError(f"no command /{name.strip()[:40]}; {hint}")
        return command.run(self, argument.strip())

    def words(self) -> Completer:
        """Return what Tab completes: commands, the fields of `/set`, models and names of files."""
        models = WordCompleter(self._models, WORD=True)
        return Words({"set": WordCompleter([*OFFERED]), "model": models, **dict.fromkeys(FILE_COMMANDS, FILES)})

    def _models(self) -> list[str]:
        try:
            return [*list_models(self._chat.client)]
        except OptionError:
            return []

    def help(self, _: str) -> Outcome:
        width = max(len(command.usage) for command in COMMANDS.values())
        return Outcome("\n".join([*(f"{usage:{width}}  {text}" for usage, text, _ in COMMANDS.values()), KEYS]))

    def set(self, argument: str) -> Outcome:
        name, _, text = argument.partition(" ")
        fields = self._chat.fields
        if name in OWN_FIELDS:
            raise OptionError(f"the chat sets {name} itself")
        if text == DEFAULT:
            fields.pop(name, None)
        elif text:
            value, row = value_of(text.strip()), PARAMETERS.get(name)
            if row and row.description and self._chat.shows_progress:  # the server is Noria
                row.check(value)
            fields[name] = value
        names = [name] if name else [*fields]
        lines = [f"{name} {written(fields[name]) if name in fields else DEFAULT}" for name in names]
        return Outcome("\n".join(lines) or "all fields have the server's defaults; /set NAME VALUE changes one")

    def system(self, argument: str) -> Outcome:
        if argument:
            self._chat.system = None if argument == "none" else argument
        return Outcome(f"system message: {written(self._chat.system or 'none')}")

    def model(self, argument: str) -> Outcome:
        if not argument:
            return Outcome(described(self._chat.client, self._chat.model))
        switch(self._chat, argument)
        return Outcome(f"{argument} answers from now on")

    def save(self, argument: str) -> Outcome:
        path, messages = _path("/save", argument), self._chat.history()
        if not messages:
            raise OptionError("there is no message to save")
        try:
            if path.exists():
                _read_messages(path, f"{path} is there and is no saved conversation; give another name")
            path.write_bytes(json.dumps(messages, ensure_ascii=False, indent=1).encode() + b"\n")
        except (OSError, ValueError) as error:
            raise OptionError(f"{path} cannot be written: {one_line(error)}") from error
        return Outcome(f"saved {len(messages)} messages in {path}")

    def load(self, argument: str) -> Outcome:
        path = _path("/load", argument)
        messages = _read_messages(path, f"{path} holds no conversation")
        self._chat.replace(messages)
        return Outcome(f"loaded {len(messages)} messages")

    def retry(self, _: str) -> Outcome:
        self._chat.retract()
        return Outcome(then="answer")

    def image(self, argument: str) -> Outcome:
        path, data = _attached("/image", argument, "image", IMAGE_TYPES)
        url = f"data:{IMAGE_TYPES[path.suffix.lower()]};base64,{data}"
        self._chat.images.append({"type": "image_url", "image_url": {"url": url}})
        return Outcome(f"{path.name} goes with the next message")

    def audio(self, argument: str) -> Outcome:
        path, data = _attached("/audio", argument, "audio", AUDIO_TYPES)
        sent = {"data": data, "format": path.suffix.lower().removeprefix(".")}
        self._chat.audio.append({"type": "input_audio", "input_audio": sent})
        return Outcome(f"{path.name} goes with the next message")

    def reset(self, _: str) -> Outcome:
        self._chat.reset()
        return Outcome("the conversation is empty")

    def exit(self, _: str) -> Outcome:
        return Outcome(then="leave")


def value_of(text: str) -> Any:
    """Return the value of JSON, or `text` itself where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _attached(command: str, argument: str, what: str, types: Collection[str]) -> tuple[Path, str]:
    """Read the file that a command names; returns its bytes in base64. Raises OptionError for another type of file."""
    path = _path(command, argument)
    if path.suffix.lower() not in types:
        raise OptionError(f"{path} is no {what} by its name; expected {', '.join(types)}")
    data = _read(path)
    if len(data) > MAX_FILE_BYTES:
        raise OptionError(f"{path} has {len(data):,} bytes; the limit is {MAX_FILE_BYTES:,}")
    return path, base64.b64encode(data).decode()


def written(value: Any) -> str:
    """Return a value as JSON, a string without its quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FILE_COMMANDS = ("image", "audio", "save", "load")
FILES = PathCompleter(expanduser=True)


def _path(command: str, argument: str) -> Path:
    if not argument:
        raise OptionError(f"{command} needs the name of a file")
    try:
        return Path(argument).expanduser()
    except RuntimeError as error:
        raise OptionError(
            f"{argument}: no user {argument.partition('/')[0].removeprefix('~')} on this machine"
        ) from error


def _read(path: Path) -> bytes:
    """Read the bytes of a regular file: reading another kind, such as a pipe, may never end."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OptionError(f"{path} cannot be read: it is not a regular file")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read: {one_line(error)}") from error


def _read_messages(path: Path, refusal: str) -> list[dict[str, Any]]:
    """Read the messages in a file of `/save`, or in a request body. Raises OptionError that begins with `refusal`."""
    try:
        data = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{refusal} (not JSON)") from error
    messages: Any = data.get("messages") if isinstance(data, dict) else data
    try:
        check_messages(messages)
    except OptionError as error:
        raise OptionError(f"{refusal} ({error})") from error
    return list(messages)


COMMANDS = {
    "help": Command("/help", "show this list", Slash.help),
    "set": Command("/set [FIELD [VALUE]]", "show or change sampling fields; the value default resets", Slash.set),
    "system": Command("/system [TEXT]", "show or replace the system message; none removes it", Slash.system),
    "model": Command("/model [NAME]", "list the models, or go on with another one", Slash.model),
    "retry": Command("/retry", "answer the last message again", Slash.retry),
    "image": Command("/image FILE", "send an image with the next message", Slash.image),
    "audio": Command("/audio FILE", "send a recording with the next message", Slash.audio),
    "save": Command("/save FILE", "write the conversation as JSON messages", Slash.save),
    "load": Command("/load FILE", "go on from saved messages", Slash.load),
    "reset": Command("/reset", "forget the messages, but not the system message", Slash.reset),
    "exit": Command("/exit", "end the chat, as Ctrl-D does", Slash.exit),
}

KEYS = """\
//text begins a message with a slash. Alt-Enter, or \\ at the end, begins a new line.
Ctrl-C clears the line or stops the answer. Ctrl-D ends the chat."""
