"""Log lines for people or machines. They never contain a prompt or an answer."""

import hashlib
import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


class HumanFormatter(logging.Formatter):
    """`07:41:05 info    message key=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = "".join(f" {key}={_short(value)}" for key, value in _fields(record).items() if value is not None)
        line = f"{time} {record.levelname.lower():<7} {record.getMessage()}{fields}"
        return line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message and the line's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(log_format: str, log_level: str) -> None:
    """Send every logger of the process to stderr in one format; other libraries from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else HumanFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    use_level(log_level)


def use_level(log_level: str) -> None:
    """Log from this level on."""
    logging.getLogger("noria").setLevel(log_level.upper())


def hashed(name: str | None) -> str | None:
    """A hash of a user's name, which may be logged."""
    return hashlib.sha256(name.encode()).hexdigest()[:16] if name else None


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """The fields that were passed as `extra={"fields": {...}}`."""
    return getattr(record, "fields", {})


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
