"""Durations as Ollama writes them: seconds, "10m", "1h30m", and a negative one for ever."""

import re

from model.errors import quoted

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
MEANING = 'must be seconds, a text such as "10m" or "1h30m", or -1 for ever'


def parse_duration(value: object) -> float | None:
    """Seconds; None stands for ever. Raises ValueError, whose text continues the name of the field."""
    if isinstance(value, str):
        text = value.strip()
        negative, text = text.startswith("-"), text.removeprefix("-")
        parts = [*PART.finditer(text)]
        if re.fullmatch(r"\d+(\.\d+)?", text):
            seconds = float(text)
        elif parts and "".join(part[0] for part in parts) == text:
            seconds = sum(float(part[1]) * UNITS[part[2]] for part in parts)
        else:
            raise ValueError(f"{MEANING}, got {quoted(value)}")
        return None if negative else seconds
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError(f"{MEANING}, got {quoted(value)}")
    return None if value < 0 else float(value)
