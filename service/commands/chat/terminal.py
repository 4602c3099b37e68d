"""A chat on a terminal: messages and commands are read with prompt_toolkit, Ctrl-C stops an answer."""

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.utils import is_dumb_terminal
from rich.console import Console

from model.errors import NoriaError
from service.commands.chat.conversation import Conversation, clean
from service.commands.chat.display import Pipe, Screen
from service.commands.chat.server import model_card, request_fields
from service.commands.chat.slash import Slash

PROMPT, CONTINUATION = "> ", "  "
ENTER = (Keys.ControlM, Keys.ControlJ)
NOT_KEPT = (Keys.ControlC, Keys.ControlD, Keys.CPRResponse)
"""Keys that mean nothing at the next prompt if they were typed during an answer."""


class Interrupts:
    """Ctrl-C in a chat: it stops what `finish` runs. At any other time it does nothing, so it never ends the chat."""

    def __init__(self) -> None:
        self._armed = False
        self._waits = False
        self._came = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def finish(self, work: Callable[[], None]) -> bool:
        """Whether `work` came to its end; False if Ctrl-C stopped it."""
        try:
            try:
                self._armed = True
                work()
            finally:
                self._armed = False
        except KeyboardInterrupt:
            return False
        return True

    def whole(self, part: Callable[[], None]) -> None:
        """Run a part of the work that must not break in its middle. Ctrl-C stops the work after it."""
        self._waits, self._came = True, False
        try:
            part()
        finally:
            self._waits = False
        if self._came:
            raise KeyboardInterrupt

    def _on_signal(self, *_: Any) -> None:
        if self._armed:
            self._armed = False  # a second Ctrl-C must not break what cleans up after the first
            self._came = self._waits
            if not self._waits:
                raise KeyboardInterrupt


class Lines:
    """The user's messages and commands, with editing and a history.

    Enter sends. Alt-Enter, or a backslash at the end, begins a new line, and pasted lines are one message.
    """

    def __init__(self, words: Completer) -> None:
        output = None if is_dumb_terminal() else create_output(always_prefer_tty=True)
        if isinstance(output, Vt100_Output):
            output.enable_cpr = False  # the answer to the question where the cursor is would come among the keys
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
            output=output,
        )

    def read(self) -> str:
        """The next message, without spaces at its end. Raises EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C.

        Spaces at its beginning stay: they may be the indentation of code.
        """
        text = self._session.prompt()
        return text.encode(errors="replace").decode().rstrip().lstrip("\n")

    def take(self) -> None:
        """Read what the user has typed. A full buffer of the terminal would hold back Ctrl-C as well."""
        keys = get_typeahead(self._session.input)
        while new := self._session.input.read_keys():
            keys += new
        store_typeahead(self._session.input, keys)

    def hold(self) -> None:
        """Offer at the next prompt what the user has typed since the last one.

        Enter begins a new line there and sends nothing: the text may have been pasted.
        """
        self.take()
        keys = [*get_typeahead(self._session.input), *self._session.input.flush_keys()]
        kept = [key for key in keys if key.key not in NOT_KEPT]
        while kept and kept[-1].key in ENTER:
            kept.pop()
        enter = [KeyPress(Keys.Escape), KeyPress(Keys.ControlM, "\r")]
        store_typeahead(self._session.input, [part for key in kept for part in (enter if key.key in ENTER else [key])])


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
    """Messages of this and earlier chats, in a file that only the user reads. Without the file, of this chat alone."""
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


@contextmanager
def restored_terminal() -> Iterator[None]:
    """The terminal gets its modes back at the end, whatever `hide_keys` did."""
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def hide_keys() -> None:
    """What is typed is neither shown nor held back until Enter, until the next prompt. Ctrl-C stays a signal."""
    modes = termios.tcgetattr(sys.stdin)
    modes[3] = modes[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH  # Ctrl-C does not drop what is typed
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)


@contextmanager
def hidden_keys() -> Iterator[None]:
    """Keys are hidden in the block, also after Ctrl-Z and `fg`: the shell sets the modes of the terminal anew."""

    def hide_again(*_: Any) -> None:
        if os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():  # setting modes would stop a process in the background
            hide_keys()

    hide_keys()
    before = signal.signal(signal.SIGCONT, hide_again)
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, before)


class Chat:
    """One conversation on a terminal."""

    def __init__(self, conversation: Conversation) -> None:
        fields = request_fields(conversation.client)
        if "return_progress" in fields:
            conversation.hidden["return_progress"] = True
        self._conversation = conversation
        self._slash = Slash(conversation, fields, model_card(conversation.client, conversation.model))
        self._lines = Lines(self._slash.words())
        self._interrupts = Interrupts()
        notes = sys.stdout if sys.stdout.isatty() else sys.stderr  # a file gets the answers alone
        self._console = Console(file=notes, highlight=False, markup=False, emoji=False)

    def run(self) -> None:
        """Read and answer until the user leaves."""
        model = clean(self._conversation.model)
        self._console.print(f"{model} is ready. /help lists the commands, Ctrl-D ends the chat.")
        with restored_terminal(), self._interrupts.handled():
            hide_keys()
            while (line := self._read()) is not None and self._do(line):
                pass

    def _read(self) -> str | None:
        """The user's next line, empty after Ctrl-C; None at the end."""
        try:
            return self._lines.read()
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None

    def _do(self, line: str) -> bool:
        """Obey or answer `line`; False if the user leaves."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                outcome = self._slash.obey(line)
                if outcome.text:
                    self._console.print(clean(outcome.text))
                if outcome.then == "answer":
                    self._answer()
                return outcome.then != "leave"
            if line:
                self._conversation.say(line.removeprefix("/") if line.startswith("//") else line)
                self._answer()
        except NoriaError as error:
            self._console.print(clean(str(error)), style="red")
        return True

    def _answer(self) -> None:
        """Show the answer as it comes. Raises NoriaError with the server's error."""
        shown = (Screen if sys.stdout.isatty() and not is_dumb_terminal() else Pipe)(self._conversation.fields)

        def show() -> None:
            with closing(self._conversation.answer()) as events:
                for event in events:
                    shown.show(event)
                    self._interrupts.whole(self._lines.take)

        try:
            with hidden_keys():
                stopped = not self._interrupts.finish(show)
        except NoriaError:
            shown.end()
            raise
        else:
            shown.end("[stopped]" if stopped else "")
        finally:
            self._lines.hold()
