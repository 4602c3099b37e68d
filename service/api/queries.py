"""The parameters of a query, checked."""

from collections.abc import Sequence

from model.errors import quoted
from service.api.call import Call
from service.errors.errors import InvalidRequest
from service.errors.wording import either

BOOLEANS = ("true", "false")
MAX_NUMBER = 2**31 - 1


def choice(call: Call, name: str, allowed: Sequence[str], default: str) -> str:
    """Return the value of a parameter. Raises InvalidRequest for one that is not allowed."""
    value = call.request.query_params.get(name)
    if value is None:
        return default
    if value not in allowed:
        raise InvalidRequest(f"{name} must be {either(allowed)}, or left out, got {quoted(value)}", param=name)
    return value


def number(call: Call, name: str, default: int, *, least: int, most: int = MAX_NUMBER) -> int:
    """Return the value of a parameter that is a whole number. Raises InvalidRequest for one outside the limits."""
    text = call.request.query_params.get(name)
    if text is None:
        return default
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(most)) else -1
    if not least <= value <= most:
        raise InvalidRequest(f"{name} must be a whole number from {least} to {most}, got {quoted(text)}", param=name)
    return value
