"""The display of an answer: on a terminal with the thought dimmed, in a file or a pipe its text alone."""

import re
import shutil
import sys
from typing import Any

from rich.cells import cell_len

from service.commands.chat.conversation import End, Event, PromptProgress
from service.generation.finish import FINISHES

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
ERASE_LINE = "\r\x1b[K"
LIMITS = ("max_completion_tokens", "max_tokens")
"""Fields that limit the length of an answer."""


def cut_note(reason: str, fields: dict[str, Any]) -> str:
    """Return why an answer is not complete; empty for one that is. `fields` are those that the user set."""
    limit = next((name for name in LIMITS if fields.get(name) is not None), None)
    if reason == "length" and limit is not None:
        return f"[cut at {limit} {fields[limit]}]"
    note = FINISHES[reason].note if reason in FINISHES else f"the answer ended: {reason}"
    return note and f"[{note}]"


class Wrapping:
    """Text on a terminal. A word that does not fit its line moves to the next one, also if it comes in pieces."""

    def __init__(self) -> None:
        self._column, self._word = 0, ""

    def lay(self, text: str) -> str:
        width, laid = shutil.get_terminal_size().columns, ""
        for part in re.findall(r"\s|\S+", text):
            before, cells = cell_len(self._word), 1 if part.isspace() else cell_len(part)
            self._word = "" if part.isspace() else self._word + part
            if self._word and before < self._column and self._column + cells >= width:
                laid += "\b" * before + " " * before + "\n" + self._word.removesuffix(part)
                self._column = before
            laid += part
            self._column = 0 if part == "\n" else (self._column + cells) % width
        return laid


class AnswerDisplay:
    """An answer as it comes. Without `styled` the thought is left out, and why the answer was cut goes to stderr."""

    def __init__(self, fields: dict[str, Any], *, styled: bool) -> None:
        self._fields = fields
        self._styled = styled
        self._is_thought = self._has_text = self._has_status = False
        self._note, self._wrapping = "", Wrapping()

    def show(self, event: Event) -> None:
        """Print a piece, or how much of the prompt is computed; keep why the answer ended."""
        if isinstance(event, PromptProgress):
            self._show_progress(event)
            return
        self._clear_status()
        if isinstance(event, End):
            self._note = cut_note(event.reason, self._fields)
        elif self._styled or not event.is_thought:
            gap = "\n\n" if self._is_thought and not event.is_thought else ""
            self._is_thought, self._has_text = event.is_thought, True
            text = self._wrapping.lay(gap + event.text) if self._styled else event.text
            print(_dimmed(text) if event.is_thought else text, end="", flush=True)

    def end(self, note: str = "") -> None:
        """End the line, and print `note`, or why the answer was cut."""
        self._clear_status()
        if self._has_text or not self._styled:
            print(flush=True)
        if note := note or self._note:
            print(_dimmed(note) if self._styled else note, file=None if self._styled else sys.stderr, flush=True)

    def _show_progress(self, progress: PromptProgress) -> None:
        if self._styled:
            self._has_status = True
            line = _dimmed(f"reading {progress.processed:,} of {progress.total:,} tokens")
            print(f"{ERASE_LINE}{line}", end="", flush=True)

    def _clear_status(self) -> None:
        if self._has_status:
            print(ERASE_LINE, end="", flush=True)
            self._has_status = False


def _dimmed(text: str) -> str:
    return f"{DIM}{text}{PLAIN}"
