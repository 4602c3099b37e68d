"""The JSON of large answers, written in parts between which other threads run."""

from typing import Any

import orjson

PART = 1024
"""Items of a list that are written at once. orjson holds the interpreter until it has written its whole argument."""


def written(answer: Any) -> bytes:
    """The same bytes as `orjson.dumps(answer)`."""
    return orjson.dumps(_in_parts(answer))


def _in_parts(value: Any) -> Any:
    """The value with finished JSON in place of long lists."""
    if isinstance(value, dict):
        return {key: _in_parts(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) <= PART:
        return [_in_parts(item) for item in value]
    parts = (orjson.dumps(value[start : start + PART])[1:-1] for start in range(0, len(value), PART))
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")
