"""Errors that users can cause: each message is one line that says what is wrong, why, and what to do.

NoriaError
├── ModelError       a model that cannot be loaded (missing, unknown format, damaged)
├── OptionError      a start-up option that cannot be used (lengths, device)
│   └── MemoryLack   what the options require does not fit into the memory
├── MediaError       a file of a request that cannot be decoded (format, size, damage)
└── ParameterError   a parameter of a request outside its range; has the field's name
"""

import json
from typing import Any

MAX_CHARS = 300
"""Maximum length of a message from another library."""
QUOTED_CHARS = 80
CUT = QUOTED_CHARS + 1
ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


class NoriaError(Exception):
    """Base of all errors whose message is for the user."""


class ModelError(NoriaError):
    """A model that cannot be loaded: what was found, what was expected."""


class OptionError(NoriaError):
    """A start-up option that cannot be used: the option, its value, the limit."""


class MemoryLack(OptionError):
    """An option's need does not fit into the memory: what, how much, how much there is."""


class MediaError(NoriaError):
    """A file that cannot be decoded: what is wrong with it, as in "has 10 pixels; the limit is 9"."""


class ParameterError(NoriaError):
    """A parameter of a request that is out of range. `param` names the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def short(value: object) -> str:
    """Shorten a value from a file for a message to the operator: on one line, and not long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def quoted(value: Any) -> str:
    """Quote a value for a message to a client: JSON on one line, short, and fast to make even of a large value."""
    text = ""
    for part in ENCODER.iterencode(value[:CUT] if isinstance(value, str) else value):
        text += part[:CUT]
        if len(text) >= CUT:
            break
    text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text[:CUT])
    return text if len(text) <= QUOTED_CHARS else text[:QUOTED_CHARS] + "..."


def one_line(error: Exception) -> str:
    """Return an exception's message on one line, without the path of an OSError; its type if there is no message."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(text.split())[:MAX_CHARS] or type(error).__name__


def counted(n: int, noun: str) -> str:
    """Write a number of things for people, such as "1 page" or "2 pages"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def size(n_bytes: float) -> str:
    """Write a size for people, such as "1.50 GiB" or "4 bytes"."""
    if n_bytes < 2**10:
        return f"{n_bytes:.0f} bytes"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.2f} {unit}"
    return f"{n_bytes / 2**10:.1f} KiB"


def duration(seconds: float) -> str:
    """Write a time for people: "45 s", "3 min", "2 h 5 min"."""
    minutes, hours = round(seconds / 60), int(seconds // 3600)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{hours} h {round(seconds % 3600 / 60)} min"
