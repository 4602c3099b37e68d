"""Prompts without messages: texts or token ids, one or many."""

from typing import Annotated

from service.errors.errors import InvalidRequest
from service.schema.fields import Items, TokenIds, expect

MAX_PROMPTS = 1024

Prompts = Annotated[
    str | Items[str] | TokenIds | Items[TokenIds],
    expect("a string, a list of strings, a list of token ids or a list of lists of token ids"),
]


def listed(prompts: Prompts) -> list[str] | list[TokenIds]:
    """The list of prompts, each a string or token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]
    return prompts  # type: ignore[return-value]


def check_prompts(name: str, prompts: list[str] | list[TokenIds]) -> int:
    """The number of prompts. Raises InvalidRequest for none and for too many."""
    if not prompts:
        raise InvalidRequest(f"{name} must not be an empty list", param=name)
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"{name} takes at most {MAX_PROMPTS} prompts, got {len(prompts)}", param=name)
    return len(prompts)
