"""Ranges of numbers in a configuration. No torch."""

from math import isfinite

MAX_SIZE = 2**31 - 1


def is_number(value: object) -> bool:
    """Return whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def is_size(value: object) -> bool:
    """Return whether it is a whole number from 1 to MAX_SIZE."""
    return isinstance(value, int) and 1 <= value <= MAX_SIZE
