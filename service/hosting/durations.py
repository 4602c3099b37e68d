"""Durations as Ollama reads them: seconds, "10m", "1h30m" as Go's time.ParseDuration, and a negative one for ever."""

import re

from model.errors import quoted

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
"""Seconds of Go's units. The micro sign and the Greek letter look the same."""
NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
PART = re.compile(rf"({NUMBER})({'|'.join(filter(None, UNITS))})", re.ASCII)
TEXT = re.compile(rf"([-+]?)({NUMBER}|(?:{PART.pattern})+)", re.ASCII)
MOST = 1e10
"""Seconds of the longest duration, about 300 years."""
MEANING = f'must be seconds (at most {MOST:.0e}), a text such as "10m" or "1h30m", or -1 for ever'


def parse_duration(value: object) -> float | None:
    """Return seconds; None stands for ever. Raises ValueError, whose text continues the name of the field."""
    seconds = _seconds(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds <= MOST:
        raise ValueError(f"{MEANING}, got {quoted(value)}")
    return None if seconds < 0 else float(seconds)


def _seconds(text: str) -> float | None:
    """Return the number that a text stands for; None for another text."""
    if (match := TEXT.fullmatch(text.strip())) is None:
        return None
    sign, number = match[1], match[2]
    parts = PART.findall(number) or [(number, "")]
    return sum(float(part) * UNITS[unit] for part, unit in parts) * (-1 if sign == "-" else 1)
