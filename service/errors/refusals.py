"""The refusal of a body that is not valid. It names one field, its value and its limit, in the words of JSON."""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from pydantic import ValidationError

from model.errors import counted, quoted
from service.errors.errors import InvalidRequest
from service.errors.wording import SAME, either, elsewhere, meant

MAX_PARAM_CHARS = 256
MAX_KEYS = 64
"""The limit for fields of an object that are compared with the name of a missing one."""
KINDS: Mapping[str, str] = {
    "string_type": "a string",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "a boolean",
}
"""pydantic's types of errors for a value of another kind -> the kind."""
SUBJECT = re.compile("^(Input|String|List|Dictionary|Value) should ")
LITERAL = re.compile(r"'([^']*)'")


class Line(NamedTuple):
    """One error of pydantic. `loc` has the names and indices above the value, and labels of the members of unions."""

    type: str
    loc: tuple[str | int, ...]
    msg: str
    input: Any
    context: Mapping[str, Any]


def invalid_body(error: ValidationError, body: Any) -> InvalidRequest:
    """Return the first error that pydantic found in the JSON `body`. There are few errors: see `fields.Items`."""
    found = error.errors(include_url=False)
    lines = [Line(line["type"], line["loc"], line["msg"], line["input"], line.get("ctx", {})) for line in found]
    if lines[0].type == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {lines[0].context['error']}", code="invalid_json")
    chosen = _chosen(lines, 0, body)
    first = chosen[0]
    place = _place(first, body)
    if first.type == "missing":
        return _missing(place, str(first.loc[-1]), first.input)
    if first.type == "unsupported_field":
        return _unsupported(place, first)
    about = place or "the body"
    if place.rpartition(".")[2] == "type" and all(line.type == "literal_error" for line in chosen):
        message = f"{about} {quoted(first.input)} is not supported: only {either(_literals(chosen))}"
    else:
        message = f"{about} must {_rule(chosen)}, got {_got(first)}"
    return InvalidRequest(message, param=place[:MAX_PARAM_CHARS] or None)


def _missing(place: str, name: str, parent: Any) -> InvalidRequest:
    """Refuse an object without a field that it needs; its name may be misspelt, or that of another API."""
    path = _joined(place, name)
    given = [*map(str, islice(parent, MAX_KEYS))] if isinstance(parent, dict) else []
    near = meant(name, given) or next((other for other in given if elsewhere(other, [name]) == name), None)
    if near is None:
        return InvalidRequest(f"{path} is required", param=path[:MAX_PARAM_CHARS], code="missing_required_parameter")
    message = f"unknown field {in_quotes(near)}: did you mean '{name}'?"
    param = _joined(place, near)[:MAX_PARAM_CHARS]
    return InvalidRequest(f"{place}: {message}" if place else message, param=param, code="unsupported_parameter")


def _unsupported(place: str, line: Line) -> InvalidRequest:
    """Return the refusal of `fields.unsupported`, whose message may begin with the name of the field."""
    name = line.context.get("param", "")
    between = "." if name and line.msg.startswith(f"{name} ") else ": " if name else " "
    message = f"{place}{between}{line.msg}" if place else line.msg
    param = _joined(place, name) if name else place
    return InvalidRequest(message, param=param[:MAX_PARAM_CHARS] or None, code="unsupported_parameter")


def unknown_fields(names: Sequence[str], more: bool, known: Sequence[str], harmless: Sequence[str] = ()) -> str:
    """Return the message for unknown fields, each with the known one that is probably meant. `more`: there are others.

    A field without effect (`harmless`) is suggested only for a name that is almost the same.
    """
    meanings = [elsewhere(name, known) or meant(name, known) or meant(name, harmless, SAME) for name in names]
    if len(names) == 1 and not more:
        hint = f": did you mean '{meanings[0]}'?" if meanings[0] else ""
        return f"unknown field {in_quotes(names[0])}{hint}"
    pairs = zip(names, meanings, strict=True)
    listed = [in_quotes(name) + (f" (did you mean '{near}'?)" if near else "") for name, near in pairs]
    return f"unknown fields {', '.join(listed)}" + (", ..." if more else "")


def in_quotes(name: str) -> str:
    """Return a client's name of a field, on one line and short."""
    return f"'{quoted(name)[1:].removesuffix(chr(34))}'"


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _place(line: Line, body: Any) -> str:
    """Return the path of the value in the body, such as "messages[0].content"."""
    path = ""
    for part in line.loc:
        if _has(body, part):
            body = body[part]
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _chosen(lines: Sequence[Line], at: int, value: Any) -> Sequence[Line]:
    """Return the lines to report of those that share `loc[:at]`: one, or one for each kind that the value could have.

    In a union they belong to the member that the client probably meant: the one with the value's `type`, or the one in
    which the error lies deeper. `value` is the JSON at `loc[:at]`.
    """
    first = lines[0]
    while at < len(first.loc) and _has(value, first.loc[at]):
        value, at = value[first.loc[at]], at + 1
    if at >= len(first.loc) - (first.type == "missing"):
        return [first]
    members: dict[str | int, list[Line]] = {}
    for line in lines:
        if line.loc[:at] == first.loc[:at]:
            members.setdefault(line.loc[at], []).append(line)
    others = [next((line for line in member if _of_other_type(line, at)), None) for member in members.values()]
    pairs = zip(members.values(), others, strict=True)
    fitting = [member for member, other in pairs if other is None]
    inside = [member for member in fitting if not _of_other_kind(member[0], at)]
    if inside:
        return _chosen(inside[0], at + 1, value)
    return [line for line in others if line is not None] or [member[0] for member in fitting]


def _of_other_type(line: Line, at: int) -> bool:
    """Return whether the field `type` says that the value is not this member of the union at `loc[:at]`."""
    return line.loc[at + 1 :] == ("type",) and line.type in ("literal_error", "missing")


def _of_other_kind(line: Line, at: int) -> bool:
    return len(line.loc) == at + 1 and (line.type in KINDS or line.type == "literal_error")


def _literals(lines: Sequence[Line]) -> Sequence[str]:
    return list(dict.fromkeys(name for line in lines for name in LITERAL.findall(line.context.get("expected", ""))))


def _rule(lines: Sequence[Line]) -> str:
    """Return what the value must do, as the end of a sentence with "must"."""
    kinds = dict.fromkeys(KINDS[line.type] for line in lines if line.type in KINDS)
    literals = _literals([line for line in lines if line.type == "literal_error"])
    if kinds or literals:
        return "be " + " or ".join([*([either(literals)] if literals else []), *kinds])
    first = lines[0]
    match first.type:
        case "too_long" | "too_short":
            limit = first.context.get("max_length", first.context.get("min_length"))
            return f"have at {'most' if first.type == 'too_long' else 'least'} {counted(limit, 'item')}"
        case "string_pattern_mismatch":
            return f"match the pattern {quoted(first.context['pattern'])}"
    return SUBJECT.sub("", first.msg).removeprefix("must ")


def _got(line: Line) -> str:
    """Return the value, or the length of an array with too many or too few items."""
    length = line.context.get("actual_length")
    return str(length) if isinstance(length, int) else quoted(line.input)
