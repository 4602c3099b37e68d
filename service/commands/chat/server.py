"""What a server says of itself: the fields of a chat request with their ranges, and the card of the model."""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from model.errors import OptionError
from service.commands.chat.conversation import is_sendable

# Fields that the chat sends itself, or whose answer it could not show.
NOT_FOR_USERS = frozenset(
    {"messages", "model", "stream", "stream_options", "return_progress", "n", "tools", "tool_choice", "modalities"}
    | {"parallel_tool_calls", "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "echo", "best_of"}
    | {"add_generation_prompt", "continue_final_message", "reasoning_format", "max_completion_tokens", "n_probs"}
)
UNBOUNDED = 2**31 - 1
"""A limit as large as this one only says how the server stores the number."""
SECONDS = 10.0

KINDS: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
"""Python's types for the types of a JSON schema."""


@dataclass(frozen=True, slots=True)
class RequestField:
    """A field of a request: the types of its values, its range and its choices. Without types the server checks it."""

    name: str
    kinds: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[Any, ...] = ()
    about: str = ""

    @property
    def is_simple(self) -> bool:
        """Whether one number or word is a value."""
        return bool(self.choices) or (len(self.kinds) == 1 and self.kinds[0] in ("number", "integer", "boolean"))

    @property
    def range(self) -> str:
        """What a value may be, in words: "a number from 0 to 2"."""
        if self.choices:
            return "one of " + ", ".join(map(shown, self.choices))
        kind = " or ".join(f"an {name}" if name[0] in "aio" else f"a {name}" for name in self.kinds) or "any value"
        if self.above is not None:
            kind += f" above {shown(self.above)}"
        if self.least is not None and self.most is not None:
            return f"{kind} from {shown(self.least)} to {shown(self.most)}"
        low = "" if self.least is None else f" of at least {shown(self.least)}"
        return kind + low + ("" if self.most is None else f", at most {shown(self.most)}")

    def read(self, text: str) -> Any:
        """The value that `text` stands for: JSON, or a plain string. Raises OptionError outside the range."""
        value = _value(text)
        if self.kinds == ("string",) and not isinstance(value, str):
            value = text
        if not self._allows(value):
            raise OptionError(f"{self.name} must be {self.range}, got {shown(value)[:60]}")
        return value

    def _allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        types = {kind for name in self.kinds for kind in KINDS.get(name, ())}
        if self.kinds and type(value) not in types:  # not isinstance: true is no number
            return False
        if not isinstance(value, int | float):
            return True
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )


def _value(text: str) -> Any:
    """The value of JSON; `text` itself if it is none that a request may have, such as NaN."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if is_sendable(value) else text


def shown(value: Any) -> str:
    """A value as JSON has it. A float that is a whole number has no point, and a string no quotes."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def request_fields(client: httpx.Client) -> dict[str, RequestField]:
    """The fields of a chat request by name; none for a server without an OpenAPI document."""
    try:
        document = client.get("/openapi.json", timeout=SECONDS).json()
        body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]] if "$ref" in body else body
        return {name: _field(name, about) for name, about in schema["properties"].items()}
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _field(name: str, schema: dict[str, Any]) -> RequestField:
    """The field of a property, which is a schema or `anyOf` of schemas; null, which means the default, is left out."""
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    first: dict[str, Any] = options[0] if len(options) == 1 else {}
    kinds = tuple(option.get("type", "object" if "$ref" in option else "") for option in options)
    return RequestField(
        name,
        kinds if all(isinstance(kind, str) and kind in KINDS for kind in kinds) else (),
        least=_limit(first, "minimum"),
        above=_limit(first, "exclusiveMinimum"),
        most=_limit(first, "maximum"),
        choices=tuple(value for value in first.get("enum", ()) if value is not None),
        about=str(schema.get("description", "")),
    )


def _limit(schema: dict[str, Any], name: str) -> float | None:
    limit = schema.get(name)
    return limit if isinstance(limit, int | float) and abs(limit) < UNBOUNDED else None


def settable(fields: dict[str, RequestField]) -> dict[str, RequestField]:
    """Those that a user may set: a field without a type only takes its default."""
    return {name: field for name, field in fields.items() if field.kinds and name not in NOT_FOR_USERS}


def model_card(client: httpx.Client, model: str) -> dict[str, Any]:
    """What the server says of the model at `/v1/models/{model}`; empty if it says nothing."""
    try:
        card = client.get(f"/v1/models/{model}", timeout=SECONDS).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return {}
    return card if isinstance(card, dict) else {}


def sees_images(card: dict[str, Any]) -> bool:
    """Whether `capabilities` of the card, a list or an object, has "vision"."""
    capabilities = card.get("capabilities") or ()
    return bool(capabilities.get("vision")) if isinstance(capabilities, dict) else "vision" in capabilities


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint such as "; did you mean top_p?", empty if no name is close."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""
