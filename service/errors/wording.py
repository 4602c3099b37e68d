"""The words of error messages: lists of alternatives, and the name that was probably meant, here or elsewhere."""

from collections.abc import Collection, Iterable, Mapping
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
    """Join values as JSON, with "or" before the last."""
    *others, last = map(quoted, values)
    return f"{', '.join(others)} or {last}" if others else last


def meant(name: str, known: Iterable[str], likeness: float = LIKENESS) -> str | None:
    """Return the known name that `name` is probably meant to be. Case, `_` and `-` do not count."""
    if len(name) > MAX_MEANT_CHARS:
        return None
    plain = {_plain(other): other for other in known}
    found = get_close_matches(_plain(name), plain, 3, likeness)
    closer = get_close_matches(_plain(name), found, 3, OTHER_INITIAL)
    return next((plain[other] for other in found if other in closer or other[:1] == _plain(name)[:1]), None)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


LENGTH = ("max_tokens", "max_output_tokens")
CONVERSATION = ("messages", "input", "prompt")
FORMAT = ("response_format", "text.format", "output_config.format")
MEANINGS: Mapping[str, tuple[str, ...]] = {
    "stop": ("stop_sequences",),
    "stop_sequences": ("stop",),
    "stopping_strings": ("stop", "stop_sequences"),
    **dict.fromkeys(("max_tokens", "max_output_tokens", "max_completion_tokens"), LENGTH),
    **dict.fromkeys(("max_new_tokens", "max_tokens_to_sample", "max_length", "n_predict", "num_predict"), LENGTH),
    **dict.fromkeys(("messages", "input", "inputs", "prompt", "contents"), CONVERSATION),
    "text": ("prompt",),
    "texts": ("input",),
    "system": ("instructions",),
    "system_prompt": ("system", "instructions"),
    "instructions": ("system",),
    "user": ("metadata.user_id",),
    "reasoning_effort": ("reasoning.effort", "output_config.effort"),
    "reasoning": ("reasoning_effort",),
    "thinking": ("reasoning_effort", "reasoning.effort"),
    "enable_thinking": ("chat_template_kwargs.enable_thinking",),
    "budget_tokens": ("thinking_token_budget", "thinking.budget_tokens"),
    "parameters": ("input_schema",),
    "input_schema": ("parameters",),
    **dict.fromkeys(("response_format", "output_config", "guided_schema", "format"), FORMAT),
    "add_bos": ("add_special_tokens",),
    "ids": ("tokens",),
    "token_ids": ("tokens",),
}
"""A name -> the places that mean the same, of which a body has at most one or prefers the first."""


def elsewhere(name: str, known: Collection[str]) -> str | None:
    """Return the place in a body with the `known` fields that has the meaning of a name from elsewhere."""
    return next((place for place in MEANINGS.get(name, ()) if place.partition(".")[0] in known), None)
