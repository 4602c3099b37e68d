"""A chat on a terminal: messages and commands are read with prompt_toolkit, Ctrl-C stops an answer."""

import os
import sys
from contextlib import closing, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.utils import is_dumb_terminal
from rich.console import Console

from model.errors import NoriaError
from service.commands.chat.conversation import ChatSession, Refused, clean
from service.commands.chat.display import AnswerDisplay
from service.commands.chat.models import with_load
from service.commands.chat.slash import Slash

PROMPT, CONTINUATION = "> ", "  "


class Lines:
    """The user's messages and commands, with editing and a history.

    Enter sends. Alt-Enter, or a backslash at the end, begins a new line, and pasted lines are one message.
    """

    def __init__(self, words: Completer) -> None:
        self.given = ""  # what the next line begins with
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=history(),
            key_bindings=_keys(),
            completer=words,
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            enable_suspend=True,
            output=None if is_dumb_terminal() else create_output(always_prefer_tty=True),
        )

    def read(self) -> str:
        """Read the next message, without spaces at its end. Raises EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C.

        Spaces at its beginning stay: they may be the indentation of code.
        """
        given, self.given = self.given, ""
        text = self._session.prompt(default=given)
        return text.encode(errors="replace").decode().rstrip().lstrip("\n")


def _keys() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def history() -> History:
    """Return the messages of this and earlier chats, in a file for the user alone. Without the file, of this chat."""
    state = os.environ.get("XDG_STATE_HOME", "")
    path = (Path(state) if state.startswith("/") else Path.home() / ".local/state") / "noria/chat_history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return _FileHistory(path)


class _FileHistory(FileHistory):
    def store_string(self, string: str) -> None:
        with suppress(OSError):  # a full disk must not end the chat
            super().store_string(string)


class ChatTerminal:
    """One conversation on a terminal."""

    def __init__(self, conversation: ChatSession) -> None:
        self._conversation = conversation
        self._slash = Slash(conversation)
        self._lines = Lines(self._slash.words())
        notes = sys.stdout if sys.stdout.isatty() else sys.stderr  # a file gets the answers alone
        self._console = Console(file=notes, highlight=False, markup=False, emoji=False)

    def run(self) -> None:
        """Read and answer until the user leaves."""
        model = clean(self._conversation.model)
        self._console.print(f"{model} is ready. /help lists the commands, Ctrl-D ends the chat.")
        with suppress(EOFError):
            while True:
                with suppress(KeyboardInterrupt):  # Ctrl-C never ends the chat
                    if not self._do(self._lines.read()):
                        return

    def _do(self, line: str) -> bool:
        """Run the command or answer the message in `line`; returns False if the user leaves."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                outcome = self._slash.obey(line)
                if outcome.text:
                    self._console.print(clean(outcome.text))
                if outcome.then == "answer":
                    self._answer()
                return outcome.then != "leave"
            if line:
                self._say(line)
        except NoriaError as error:
            self._console.print(clean(str(error)), style="red")
        return True

    def _say(self, line: str) -> None:
        """Answer a message. One that the server refuses is given back, with its images and audio."""
        chat = self._conversation
        before = [*chat.messages], chat.audio, chat.images
        chat.say(line.removeprefix("/") if line.startswith("//") else line)
        try:
            self._answer()
        except Refused:
            (chat.messages, chat.audio, chat.images), self._lines.given = before, line
            raise

    def _answer(self) -> None:
        """Show the answer as it comes. Raises NoriaError with the server's error."""
        display = AnswerDisplay(self._conversation.fields, styled=sys.stdout.isatty() and not is_dumb_terminal())
        note = ""
        try:
            with closing(self._conversation.answer()) as events:
                for event in with_load(self._conversation, events):
                    display.show(event)
        except KeyboardInterrupt:
            note = "[stopped]"
        finally:
            display.end(note)
