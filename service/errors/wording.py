"""The words of error messages: lists of alternatives, and the name that was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from model.errors import quoted

MAX_MEANT_CHARS = 64
"""A longer name gets no suggestion: comparing takes time."""
LIKENESS, SAME = 0.75, 0.9
"""The least share of equal characters, as `difflib` measures it, for two names that may be meant for each other, and
for two that are almost the same."""
OTHER_INITIAL = 0.8
"""The least share for two names with different first letters."""


def either(values: Iterable[Any]) -> str:
    """Values as JSON, with "or" before the last."""
    *others, last = map(quoted, values)
    return f"{', '.join(others)} or {last}" if others else last


def meant(name: str, known: Iterable[str], likeness: float = LIKENESS) -> str | None:
    """The known name that `name` is probably meant to be. Case, `_` and `-` do not count."""
    if len(name) > MAX_MEANT_CHARS:
        return None
    plain = {_plain(other): other for other in known}
    found = get_close_matches(_plain(name), plain, 3, likeness)
    closer = get_close_matches(_plain(name), found, 3, OTHER_INITIAL)
    return next((plain[other] for other in found if other in closer or other[:1] == _plain(name)[:1]), None)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
