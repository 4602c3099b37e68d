"""Log lines for people or machines. They never contain a prompt or an answer."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO


class HumanFormatter(logging.Formatter):
    """`07:41:05 info    message key=value ...`; a line of a child process has its name before the message.

    What clients send can neither end a line nor forge a field: a value with spaces or control characters is a JSON
    string, and elsewhere these characters are escaped.
    """

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._prefix = process and f"{process}: "

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = "".join(f" {key}={_short(value)}" for key, value in _fields(record).items() if value is not None)
        line = f"{time} {record.levelname.lower():<7} {self._prefix}{_escaped(record.getMessage())}{fields}"
        if record.exc_info is None:
            return line
        return "\n".join([line, *map(_escaped, self.formatException(record.exc_info).split("\n"))])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message and the line's own fields; of a child, its name."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._process,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class StderrHandler(logging.StreamHandler[TextIO]):
    """A handler for the `sys.stderr` of the time. A progress bar replaces it, so that lines appear above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure(log_format: str, log_level: str, process: str = "") -> None:
    """Send every logger of the process to stderr in one format; other libraries from warning on.

    `process` is the name of a child process, for its lines.
    """
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter(process) if log_format == "json" else HumanFormatter(process))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # its warnings repeat what clients send
    use_level(log_level)


def use_level(log_level: str) -> None:
    """Log our own lines from this level on."""
    for name in ("noria", "model"):
        logging.getLogger(name).setLevel(log_level.upper())


def level() -> str:
    return logging.getLevelName(logging.getLogger("noria").getEffectiveLevel()).lower()


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    return getattr(record, "fields", {})


def _short(value: Any) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    plain = text.isprintable() and text and not {" ", '"'} & {*text}
    return text if plain else json.dumps(text)


def _escaped(text: str) -> str:
    """Return the text with escapes for its control characters, line breaks among them."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
