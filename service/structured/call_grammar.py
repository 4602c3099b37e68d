"""What a request may call: the grammar of its answer, and words for models whose chat format knows no tools."""

import json
import re
from collections.abc import Iterator, Sequence

from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import control_pattern
from service.http.errors import InvalidRequest, shown
from service.schema.tools import Function, ToolsBody
from service.structured.call_style import Style
from service.structured.forms import ANY_OBJECT, Json, lark_grammar, with_spaces

MAX_CALLS = 32
"""In one answer."""
NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}
EXPLANATION = """You may call functions to help with the request. These are their signatures:
<tools>
{tools}
</tools>
For each call answer with its name and arguments as a JSON object in these tags:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


def call_grammar(body: ToolsBody, style: Style, tokenizer: Tokenizer, form: str | None) -> str:
    """The grammar of an answer that must call, or may; otherwise it has the `form`, another grammar, or is any text."""
    if body.must_call:
        return lark_grammar("\n".join(["start: calls", *_calls(body, style, tokenizer)]))
    if form is None:
        return lark_grammar("\n".join([*_text_or_calls(style, tokenizer), *_calls(body, style, tokenizer)]))
    whole = "\n".join(["start: @form | calls", *_calls(body, style, tokenizer)])
    return json.dumps({"grammars": [{"lark_grammar": whole}, json.loads(form)["grammars"][0] | {"name": "form"}]})


def _calls(body: ToolsBody, style: Style, tokenizer: Tokenizer) -> Iterator[str]:
    """Rules of `calls`, one or more, and of `others`, what may follow the first."""
    for number, function in enumerate(body.functions):
        opening = _words(style.opening + function.name + style.middle, tokenizer)
        extra = f"/{style.extra}/" if style.extra else ""
        yield f"call{number}: {opening} arguments{number} {extra} {_words(style.closing, tokenizer)}"
        yield f"arguments{number}: %json {json.dumps(_parameters(function, enforced=body.must_call))}"
    yield "call: " + " | ".join(f"call{number}" for number in range(len(body.functions)))
    more = "" if body.one_call else f"({_words(style.between, tokenizer)} call){{0,{MAX_CALLS - 1}}}"
    yield f'others: "" {more} {_words(style.last, tokenizer)}'
    yield f"calls: {_words(style.first, tokenizer)} call others"


def _text_or_calls(style: Style, tokenizer: Tokenizer) -> Iterator[str]:
    """Rules of `start`: free text, or calls, after text where the style has it so."""
    if style.marker in tokenizer.control:
        yield f"start: TEXT {'| calls' if style.anchored else 'calls?'}"
        spelled = rf"(.|\n)*{re.escape(style.marker)}(.|\n)*"  # which would be read as the token
        yield rf"TEXT: /(.|\n)*/ & ~/{spelled}/"
    elif style.anchored:
        yield "start: TEXT | calls"
        yield r"TEXT: /([^{](.|\n)*)?/"
    else:
        yield f"start: TEXT | text_to_marker {_words(style.first.removeprefix(style.marker), tokenizer)} call others"
        yield rf"text_to_marker[lazy]: /(.|\n)*{re.escape(style.marker)}/"
        yield r"TEXT: /(.|\n)*/"


def _words(text: str, tokenizer: Tokenizer) -> str:
    """Fixed words in Lark; after a control token SentencePiece may have a space."""
    parts = re.split(f"({control_pattern(tokenizer.control).pattern})", text)
    space = ' " "?' if tokenizer.strips_leading_space else ""
    tokens = [f"<[{tokenizer.control[part]}]>{space}" if n % 2 else json.dumps(part) for n, part in enumerate(parts)]
    return " ".join(token for token in tokens if token != '""')


def _parameters(function: Function, *, enforced: bool) -> Json:
    """The schema of a call's arguments: any object unless it is `enforced` or strict."""
    if not enforced and not function.strict:
        return with_spaces(ANY_OBJECT, "tools")
    schema = NO_PARAMETERS if function.parameters is None else function.parameters
    if schema.get("type", "object") != "object":
        message = f"tools: the parameters of {function.name} must be an object, got type {shown(schema['type'])}"
        raise InvalidRequest(message, param="tools")
    return with_spaces({"type": "object"} | schema, "tools")


# For chat formats without tools


def explained(messages: Sequence[Json], functions: Sequence[Function]) -> list[Json]:
    """Messages in words alone: what may be called in the first, a system message; calls and their results as texts."""
    plain: list[Json] = []
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if plain and plain[-1].get("answers"):  # one message: templates want turns to alternate
                plain[-1]["content"] += f"\n{text}"
            else:
                plain.append({"role": "user", "content": text, "answers": True})
        else:
            calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
            content = "\n".join(filter(None, [message["content"], *calls]))
            plain.append({key: message[key] for key in ("role", "name") if key in message} | {"content": content})
    return _introduced([{key: text for key, text in item.items() if key != "answers"} for item in plain], functions)


def _call_text(function: Json) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _introduced(messages: list[Json], functions: Sequence[Function]) -> list[Json]:
    if not functions:
        return messages
    signatures = [json.dumps(function.described(), ensure_ascii=False) for function in functions]
    words = EXPLANATION.format(tools="\n".join(signatures))
    first, *others = messages
    if first["role"] in ("system", "developer"):
        return [first | {"content": f"{first['content']}\n\n{words}"}, *others]
    return [{"role": "system", "content": words}, *messages]
