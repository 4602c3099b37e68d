"""The commands of a chat: `/set temperature 0.2`. Each is a method; what follows its name is its argument."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, WordCompleter
from prompt_toolkit.document import Document

from model.errors import OptionError, one_line
from service.commands.chat.conversation import Conversation, check_messages
from service.commands.chat.server import RequestField, nearest, sees_images, settable, shown

MAX_IMAGE_BYTES = 5 * 2**20
IMAGE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
}
"""Ends of file names -> MIME types. Python's own table has no WebP before 3.13."""
DEFAULT = "default"


class Outcome(NamedTuple):
    """What a command says, and what the chat does next."""

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
    """Obeys the commands of one conversation.

    `fields` are those that its server takes, `card` is what it says of the model; empty if it says nothing.
    """

    def __init__(self, conversation: Conversation, fields: dict[str, RequestField], card: dict[str, Any]) -> None:
        self._chat = conversation
        self._fields = settable(fields)
        self._card = card

    def obey(self, line: str) -> Outcome:
        """Do what `line`, which starts with a slash, says. Raises OptionError for what cannot be done."""
        name, _, argument = line[1:].partition(" ")
        command = COMMANDS.get(name.strip())
        if command is None:
            hint = nearest(name, COMMANDS).replace("mean ", "mean /")
            raise OptionError(
                f"no command /{name.strip()[:40]}{hint or '; /help lists them, // begins a message with /'}"
            )
        return command.run(self, argument.strip())

    def words(self) -> Completer:
        """What Tab completes: commands, the fields of `/set` and names of files."""
        return Words({"set": WordCompleter([*self._fields]), "image": IMAGE_FILES, "save": FILES, "load": FILES})

    def help(self, _: str) -> Outcome:
        width = max(len(command.usage) for command in COMMANDS.values())
        return Outcome("\n".join([*(f"{usage:{width}}  {text}" for usage, text, _ in COMMANDS.values()), KEYS]))

    def set(self, argument: str) -> Outcome:
        name, _, text = argument.partition(" ")
        if not name:
            return Outcome(self._values())
        field = self._field(name)
        if not text:
            return Outcome(self._describe(field))
        if text == DEFAULT:
            self._chat.fields.pop(name, None)
        else:
            self._chat.fields[name] = field.read(text.strip())
        return Outcome(f"{name} {self._value(name)}")

    def system(self, argument: str) -> Outcome:
        if argument:
            self._chat.system = None if argument == "none" else argument
        return Outcome(f"system message: {shown(self._chat.system or 'none')}")

    def save(self, argument: str) -> Outcome:
        path, messages = _path("/save", argument), self._chat.history()
        if not messages:
            raise OptionError("there is no message to save")
        try:
            if path.exists():
                _read_messages(path, f"{path} is there and is no saved conversation; give another name")
            path.write_text(json.dumps(messages, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
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
        path = _path("/image", argument)
        if not sees_images(self._card):
            raise OptionError(f"{self._chat.model} does not see images: its card on the server does not name vision")
        kind = IMAGE_TYPES.get(path.suffix.lower())
        if kind is None:
            raise OptionError(f"{path} is no image by its name; expected {', '.join(IMAGE_TYPES)}")
        data = _read(path)
        if len(data) > MAX_IMAGE_BYTES:
            raise OptionError(f"{path} has {len(data):,} bytes; the limit is {MAX_IMAGE_BYTES:,}")
        self._chat.images.append(f"data:{kind};base64,{base64.b64encode(data).decode()}")
        return Outcome(f"{path.name} goes with the next message")

    def reset(self, _: str) -> Outcome:
        self._chat.reset()
        return Outcome("the conversation is empty")

    def exit(self, _: str) -> Outcome:
        return Outcome(then="leave")

    def _field(self, name: str) -> RequestField:
        if not self._fields:  # the server has no OpenAPI document: it checks the value itself
            return RequestField(name)
        if name not in self._fields:
            raise OptionError(f"no field {name[:40]}{nearest(name, self._fields) or '; /set lists them'}")
        return self._fields[name]

    def _values(self) -> str:
        """The fields with one number or word, with their values and ranges; then the names of the others."""
        simple = [field for field in self._fields.values() if field.is_simple]
        others = [name for name, field in self._fields.items() if not field.is_simple]
        listed = {field.name: field.range for field in simple} | {
            name: self._field(name).range for name in self._chat.fields if name in others or not self._fields
        }
        values = {name: self._value(name) for name in listed}
        width, wide = (max(map(len, texts), default=0) for texts in (listed, values.values()))
        lines = [f"{name:{width}}  {values[name]:{wide}}  {text}" for name, text in listed.items()]
        if not self._fields:
            lines.append("the server does not list its fields; /set NAME VALUE sends any")
        return "\n".join([*lines, *([f"also: {', '.join(others)}"] if others else [])])

    def _describe(self, field: RequestField) -> str:
        return "\n".join(filter(None, (f"{field.name} {self._value(field.name)}: {field.range}", field.about)))

    def _value(self, name: str) -> str:
        """The value that the user set, or the default, which the model's card may name."""
        if name in self._chat.fields:
            return json.dumps(self._chat.fields[name], ensure_ascii=False)
        defaults = self._card.get("defaults") or {}
        return f"{DEFAULT} {shown(defaults[name])}" if name in defaults else DEFAULT


def _is_image(name: str) -> bool:
    """Whether Tab offers it: an image, or a folder, which may have images."""
    path = Path(name)
    return path.suffix.lower() in IMAGE_TYPES or path.is_dir()


FILES, IMAGE_FILES = PathCompleter(expanduser=True), PathCompleter(expanduser=True, file_filter=_is_image)


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
    """The bytes of a regular file: reading another kind, such as a pipe, may never end."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OptionError(f"{path} cannot be read: it is not a regular file")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read: {one_line(error)}") from error


def _read_messages(path: Path, refusal: str) -> list[dict[str, Any]]:
    """The messages in a file of `/save`, or in a request body. Raises OptionError with `refusal` and the reason."""
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
    "retry": Command("/retry", "answer the last message again", Slash.retry),
    "image": Command("/image FILE", "send an image with the next message", Slash.image),
    "save": Command("/save FILE", "write the conversation as JSON messages", Slash.save),
    "load": Command("/load FILE", "go on from saved messages", Slash.load),
    "reset": Command("/reset", "forget the messages, but not the system message", Slash.reset),
    "exit": Command("/exit", "end the chat, as Ctrl-D does", Slash.exit),
}

KEYS = """\
//text begins a message with a slash. Alt-Enter, or \\ at the end, begins a new line.
Ctrl-C clears the line or stops the answer. Ctrl-D ends the chat."""
