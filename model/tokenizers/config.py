"""`tokenizer_config.json` of a model directory."""

from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Any

from model.checkpoint.files import read_json


def tokenizer_config(directory: Traversable) -> dict[str, Any]:
    """The content of `tokenizer_config.json`; empty if there is no such file."""
    path = directory / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def special_token(config: Mapping[str, Any], role: str) -> str | None:
    """The text of a special token such as "bos_token" in `tokenizer_config.json`: a string or an object with it."""
    value = config.get(role)
    return value.get("content") if isinstance(value, dict) else value
