"""The styles in which models write function calls."""

import hashlib
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from model.tokenizers.base import Tokenizer
from service.generation.served import ServedModel
from service.schema.fields import Json

ID_CHARS = string.ascii_letters + string.digits
SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
"""An id as Mistral's formats take it, up to v11."""


@dataclass(frozen=True, slots=True)
class Style:
    """The text around the names and arguments of calls. Worked example, "hermes", two calls:

        <tool_call>                                                first
        {"name": "f", "arguments": {"a": 1}}                       opening, name, middle, arguments, closing
        </tool_call>                                               closing
        <tool_call>                                                between
        {"name": "g", "arguments": {}}
        </tool_call>

    The first call begins with `marker`. Text may come before it, but not with `anchored`.
    A model may write an id of the call: after `id_before`, which follows the name, or between the words of `id_after`,
    which follow the arguments. With `single` an answer has one call. Control tokens are written by name.
    """

    marker: str
    first: str
    opening: str
    middle: str
    closing: str
    between: str
    last: str = ""
    id_before: str = ""
    id_after: tuple[str, str] | None = None
    anchored: bool = False
    single: bool = False
    short_ids: bool = False

    def control(self, tokenizer: Tokenizer) -> frozenset[str]:
        """The names of the control tokens that the reader of calls needs in the text."""
        words = self.first + self.opening + self.id_before + self.middle
        return frozenset(name for name in tokenizer.control if name in words)

    def new_id(self) -> str:
        """A new id of a call. Mistral's formats require nine letters or digits."""
        return (
            "".join(secrets.choice(ID_CHARS) for _ in range(9)) if self.short_ids else f"call_{secrets.token_hex(12)}"
        )

    def with_ids(self, messages: Sequence[Json]) -> Sequence[Json]:
        """The messages with call ids that the format accepts. Another id becomes a short one, always the same."""
        return [self._with_ids(message) for message in messages] if self.short_ids else messages

    def _with_ids(self, message: Json) -> Json:
        calls = [call | {"id": _short_id(call["id"])} for call in message.get("tool_calls", ())]
        answers = message.get("tool_call_id")
        changed = {"tool_calls": calls or None, "tool_call_id": answers and _short_id(answers)}
        return message | {key: value for key, value in changed.items() if value}


def _short_id(name: str) -> str:
    return name if SHORT_ID.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:9]


MISTRAL = Style(
    marker="[TOOL_CALLS]",
    first="[TOOL_CALLS][",
    opening='{"name": "',
    middle='", "arguments": ',
    closing="}",
    between=", ",
    last="]",
    id_after=(', "id": "', '"'),
    short_ids=True,
)
ARGS = Style(
    marker="[TOOL_CALLS]",
    first="",
    opening="[TOOL_CALLS]",
    middle="[ARGS]",
    closing="",
    between="",
    short_ids=True,
)
LLAMA = Style(
    marker='{"name": "',
    first="",
    opening='{"name": "',
    middle='", "parameters": ',
    closing="}",
    between="; ",
    anchored=True,
)
STYLES: Mapping[str, Style] = {
    "hermes": Style(
        marker="<tool_call>",
        first="<tool_call>\n",
        opening='{"name": "',
        middle='", "arguments": ',
        closing="}\n</tool_call>",
        between="\n<tool_call>\n",
    ),
    "llama": LLAMA,
    "llama-single": replace(LLAMA, single=True),  # Llama 3's template refuses a message with two calls
    "mistral": MISTRAL,
    "mistral-v3": replace(MISTRAL, anchored=True),  # up to this version a message has either text or calls
    "mistral-v11": replace(ARGS, id_before="[CALL_ID]"),
    "mistral-args": ARGS,
    "functools": Style(
        marker="functools[",
        first="functools[",
        opening='{"name": "',
        middle='", "arguments": ',
        closing="}",
        between=", ",
        last="]",
    ),
}


def style_of(served: ServedModel) -> Style:
    """The style of the model's chat format, or the style that `tool_prompt` explains where the format has no tools."""
    return STYLES[(served.chat and served.chat.call_style) or "hermes"]
