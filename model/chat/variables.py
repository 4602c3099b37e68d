"""Variables of a chat template: what a request may set (`chat_template_kwargs`), and to which values."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from model.chat.schema import FIELD
from model.errors import ParameterError, quoted

MAX_NUMBER = 2**31
MAX_CHARS = 1024
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
RESERVED = ("messages", "add_generation_prompt", "tools", "documents", FIELD, *SPECIAL_TOKENS)
"""Variables that the server sets itself."""


def check_variables(variables: Mapping[str, Any], declared: Collection[str], control: re.Pattern[str]) -> None:
    """Raise ParameterError for a variable that the template does not declare, and for a value that is not allowed.

    A value must not contain the name of a `control` token: the template would write it among its own words, where it
    becomes that token.
    """
    for name, value in variables.items():
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            message = f"chat_template_kwargs has {quoted(name)}, this model's chat template declares: {known}"
            raise ParameterError("chat_template_kwargs", message)
        if not _allowed(value, control):
            raise ParameterError(
                "chat_template_kwargs",
                f"chat_template_kwargs.{name} must be true, false, null, a number from -{MAX_NUMBER} to {MAX_NUMBER}, "
                f"or a string of at most {MAX_CHARS} characters without control tokens",
            )


def _allowed(value: Any, control: re.Pattern[str]) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_CHARS and not control.search(value)
    return value is None or (isinstance(value, int | float) and abs(value) <= MAX_NUMBER)
