"""The styles in which models write function calls: their grammar, and the words that explain them to other models."""

import hashlib
import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from model.chat.reasoning import PARTS, THOUGHT
from model.errors import quoted
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import control_pattern
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel
from service.schema.fields import Json
from service.schema.tools import AllowedCalls, Function
from service.structured.constraint import ANY_OBJECT, Constraint, lark_grammar, with_spaces

ID_CHARS = string.ascii_letters + string.digits
SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
"""An id as Mistral's formats take it, up to v11."""
MAX_ANSWER_CALLS = 32
"""The limit for calls in one answer."""
ANY_ARGUMENTS = with_spaces(ANY_OBJECT, "tools")
NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}


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
        """Return the names of the control tokens that the reader of calls needs in the text."""
        words = self.first + self.opening + self.id_before + self.middle
        return frozenset(name for name in tokenizer.control if name in words)

    def new_id(self, source: Random) -> str:
        """Return a new id of a call. Mistral's formats require nine letters or digits."""
        if self.short_ids:
            return "".join(source.choice(ID_CHARS) for _ in range(9))
        return f"call_{source.getrandbits(96):024x}"

    def with_ids(self, messages: Sequence[Json]) -> Sequence[Json]:
        """Return the messages with call ids that the format accepts. One id always becomes the same short one."""
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
    marker="[TOOL_CALLS]", first="", opening="[TOOL_CALLS]", middle="[ARGS]", closing="", between="", short_ids=True
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
}


def style_of(served: ServedModel) -> Style:
    """Return the style of the model's chat format; without tools in the format, the one that `EXPLANATION` teaches."""
    return STYLES[(served.chat and served.chat.call_style) or "hermes"]


def call_constraint(
    calls: AllowedCalls, style: Style, tokenizer: Tokenizer, otherwise: Constraint | None = None
) -> Constraint:
    """Return the constraint of an answer that may call, or must. Without calls it follows `otherwise`, or is any text.

    Raises InvalidRequest for parameters that are not the schema of an object.
    """
    named = [_arguments(number, function, enforced=calls.must) for number, function in enumerate(calls.functions)]
    fields = ["tools"]
    if calls.must:
        start = ["start: calls"]
    elif otherwise is None:
        start = [*_text_or_calls(style, tokenizer)]
    else:
        start = ["start: @answer | calls"]
        fields += otherwise.fields
        named.append(otherwise.grammar["grammars"][0] | {"name": "answer"})
    rules = "\n".join([*start, *_calls(calls, style, tokenizer)])
    return Constraint({"grammars": [*lark_grammar(rules)["grammars"], *named]}, tuple(fields))


def _arguments(number: int, function: Function, *, enforced: bool) -> Json:
    """Return the grammar of a call's arguments. It stands by itself: its errors have no rules of ours."""
    return {"name": f"arguments{number}", "json_schema": _parameters(function, enforced=enforced)}


def _calls(calls: AllowedCalls, style: Style, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the rules for `calls`: one call or more, of which `others` are all but the first."""
    for number, function in enumerate(calls.functions):
        opening = _words(style.opening + function.name, tokenizer)
        middle, closing = _words(style.middle, tokenizer), _words(style.closing, tokenizer)
        before, after = _ids(style, tokenizer)
        yield f"call{number}: {opening} {before} {middle} @arguments{number} {after} {closing}"
    yield "call: " + " | ".join(f"call{number}" for number in range(len(calls.functions)))
    more = "" if calls.one or style.single else f"({_words(style.between, tokenizer)} call){{0,{MAX_ANSWER_CALLS - 1}}}"
    yield f'others: "" {more} {_words(style.last, tokenizer)}'
    yield f"calls: {_words(style.first, tokenizer)} call others"


def _ids(style: Style, tokenizer: Tokenizer) -> tuple[str, str]:
    """Return the rules for the id that the model writes before the arguments of a call, and for one after them."""
    before, after = "", ""
    if style.id_before:
        before = f"({_words(style.id_before, tokenizer)} /{SHORT_ID.pattern}/)?"
    if style.id_after:
        opening, closing = (_words(words, tokenizer) for words in style.id_after)
        after = f"({opening} /{SHORT_ID.pattern}/ {closing})?"
    return before, after


def _text_or_calls(style: Style, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the rules for `start`: free text or calls. Not anchored, calls may follow text."""
    if style.marker in tokenizer.control:
        yield f"start: TEXT {'| calls' if style.anchored else 'calls?'}"
        spelled = rf"(.|\n)*{re.escape(style.marker)}(.|\n)*"  # the text would be read as the control token
        yield rf"TEXT: /(.|\n)*/ & ~/{spelled}/"
    elif style.anchored:
        yield "start: TEXT | calls"
        yield r"TEXT: /([^{](.|\n)*)?/"
    else:
        yield f"start: TEXT | text_to_marker {_words(style.first.removeprefix(style.marker), tokenizer)} call others"
        yield rf"text_to_marker[lazy]: /(.|\n)*{re.escape(style.marker)}/"
        yield r"TEXT: /(.|\n)*/"


def _words(text: str, tokenizer: Tokenizer) -> str:
    """Write fixed text in Lark. SentencePiece may put a space after a control token."""
    names = control_pattern(name for name in tokenizer.control if name in text)  # of a thousand hardly one
    parts = re.split(f"({names.pattern})", text)
    space = ' " "?' if tokenizer.strips_leading_space else ""
    tokens = [f"<[{tokenizer.control[part]}]>{space}" if n % 2 else json.dumps(part) for n, part in enumerate(parts)]
    return " ".join(token for token in tokens if token != '""')


def _parameters(function: Function, *, enforced: bool) -> Json:
    """Return the schema of a call's arguments: any object, unless the schema is `enforced` or strict."""
    if not enforced and not function.strict:
        return ANY_ARGUMENTS
    schema = NO_PARAMETERS if function.parameters is None else function.parameters
    if schema.get("type", "object") != "object":
        message = f"tools: the parameters of {function.name} must be an object, got type {quoted(schema['type'])}"
        raise InvalidRequest(message, param="tools")
    return with_spaces({"type": "object"} | schema, "tools")


FIELDS = ("role", "name", THOUGHT, PARTS)
EXPLANATION = """You may call functions to help with the request. These are their signatures:
<tools>
{tools}
</tools>
For each call answer with its name and arguments as a JSON object in these tags:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


def explained(messages: Sequence[Json], functions: Sequence[Function]) -> list[Json]:
    """Write the messages as text alone: a system message describes the functions; calls and results are texts."""
    plain: list[Json] = []
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if plain and plain[-1].get("answers"):  # in one message: templates require alternating roles
                plain[-1]["content"] += f"\n{text}"
            else:
                plain.append({"role": "user", "content": text, "answers": True})
        else:
            calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
            content = "\n".join(filter(None, [message["content"], *calls]))
            plain.append({key: message[key] for key in FIELDS if key in message} | {"content": content})
    texts = [{key: text for key, text in item.items() if key != "answers"} for item in plain]
    return _with_signatures(texts, functions)


def _call_text(function: Json) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _with_signatures(messages: list[Json], functions: Sequence[Function]) -> list[Json]:
    if not functions:
        return messages
    signatures = [json.dumps(function.described(), ensure_ascii=False) for function in functions]
    words = EXPLANATION.format(tools="\n".join(signatures))
    first, *others = messages
    if first["role"] in ("system", "developer"):
        told = first | {"content": f"{first['content']}\n\n{words}"}
        parts = {PARTS: [*first[PARTS], {"type": "text", "text": f"\n\n{words}"}]} if PARTS in first else {}
        return [told | parts, *others]
    return [{"role": "system", "content": words}, *messages]
