"""How a terminal shows an answer: words that wrap as they come, the thought dimmed, progress, why it was cut."""

import shutil
import sys
from collections.abc import Callable
from typing import Any

from prompt_toolkit.utils import get_cwidth

from service.commands.chat.conversation import End, Event, Piece, Progress
from service.generation.finish import FINISHES

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
ERASE_LINE = "\r\x1b[K"
FENCE = "```"
LIMITS = ("max_completion_tokens", "max_tokens")
"""Fields that limit the length of an answer."""


def columns() -> int:
    """The width of the terminal."""
    return shutil.get_terminal_size().columns


def cut_note(reason: str, fields: dict[str, Any]) -> str:
    """Why an answer is not complete; empty for one that is. `fields` are those that the user set."""
    limit = next((name for name in LIMITS if fields.get(name) is not None), None)
    if reason == "length" and limit is not None:
        return f"[cut at {limit} {fields[limit]}]"
    note = FINISHES[reason].note if reason in FINISHES else f"the answer ended: {reason}"
    return note and f"[{note}]"


class Wrapped:
    """Text that breaks between words at a width. It comes in pieces, and a word is shown when it is complete.

    Lines of code, between fences, keep their length: a break in them would be copied.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._column = 0
        self._gap = ""
        self._word = ""
        self._is_code = False

    def feed(self, text: str) -> str:
        """The part to show now: up to the last complete word."""
        return "".join(map(self._take, text))

    def flush(self) -> str:
        """The last word, complete or not."""
        word, self._word = self._word, ""
        return self._place(word) if word else ""

    def _take(self, character: str) -> str:
        if character == "\n":
            shown, self._column, self._gap = self.flush() + "\n", 0, ""
            return shown
        if character in " \t":
            shown = self.flush()
            self._gap += "    " if character == "\t" else " "
            return shown
        if get_cwidth(character) > 1:  # Chinese has no spaces: a line may break before each character
            return self.flush() + self._place(character)
        self._word += character
        return ""

    def _place(self, word: str) -> str:
        gap, self._gap = self._gap, ""
        if self._column == 0 and word.startswith(FENCE):
            self._is_code = not self._is_code
        width, size = self._width(), get_cwidth(word)
        if self._column and not self._is_code and self._column + len(gap) + size > width:
            self._column = size
            return "\n" + word
        self._column += len(gap) + size
        return gap + word


class Screen:
    """An answer on a terminal."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self._text = Wrapped(columns)
        self._is_thought = False
        self._has_status = False
        self._has_text = False
        self._note = ""

    def show(self, event: Event) -> None:
        if isinstance(event, Piece):
            self._show_piece(event)
        elif isinstance(event, End):
            self._note = cut_note(event.reason, self._fields)
        elif event.processed < event.total:
            self._show_progress(event)

    def end(self, note: str = "") -> None:
        """Show what is left of the answer, and under it `note`, or why the answer was cut."""
        self._clear_status()
        self._write(self._text.flush())
        if self._has_text:
            print(flush=True)
        if note := note or self._note:
            note = Wrapped(columns).feed(f"{note}\n")
            print(f"{DIM}{note}{PLAIN}", end="", flush=True)

    def _show_piece(self, piece: Piece) -> None:
        self._clear_status()
        self._has_text = True
        if self._is_thought and not piece.is_thought:
            self._write(self._text.flush() + self._text.feed("\n\n"))
        self._is_thought = piece.is_thought
        self._write(self._text.feed(piece.text))

    def _show_progress(self, progress: Progress) -> None:
        self._has_status = True
        line = f"reading {progress.processed:,} of {progress.total:,} tokens"
        print(f"{ERASE_LINE}{DIM}{line[: columns() - 1]}{PLAIN}", end="", flush=True)

    def _clear_status(self) -> None:
        if self._has_status:
            print(ERASE_LINE, end="")
            self._has_status = False

    def _write(self, text: str) -> None:
        if text:
            print(f"{DIM}{text}{PLAIN}" if self._is_thought else text, end="", flush=True)


class Pipe:
    """An answer in a file or a pipe: its text alone. Why it was cut goes to stderr."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self._note = ""

    def show(self, event: Event) -> None:
        if isinstance(event, Piece) and not event.is_thought:
            print(event.text, end="", flush=True)
        elif isinstance(event, End):
            self._note = cut_note(event.reason, self._fields)

    def end(self, note: str = "") -> None:
        print(flush=True)
        if note := note or self._note:
            print(note, file=sys.stderr, flush=True)
