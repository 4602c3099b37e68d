"""Schemas of values that another JSON schema does not allow, written without `not`."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise, starmap
from typing import Any

from model.errors import quoted
from service.schema.fields import Json
from service.structured.proofs import ANYTHING, MAX_DEPTH, TYPES, Facts, Proofs, as_list, matches, type_of

MAX_CHARS, MAX_TEXT, MAX_BRANCHES = 2_000, 200, 64
"""Characters of texts that a pattern leaves out, and of one of them; schemas of a `oneOf` in a `not`."""
KEYWORDS: Mapping[str, Collection[str]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "additionalItems", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "object": (
        *("properties", "additionalProperties", "patternProperties", "propertyNames", "required", "minProperties"),
        *("maxProperties", "dependencies", "dependentRequired", "dependentSchemas"),
    ),
}
"""Keywords that only values of a type can fail. All others but those of STRICT, no value can fail."""
STRICT = ("oneOf", "if", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef")
CLASS = re.compile(r"\^\[((?:\\.|[^]\\[])+)\]([+*])\$")
"""A pattern of texts whose characters are all of one class."""
ANY = r"[\s\S]"


class NotSupported(ValueError):
    """Raised for a keyword whose opposite cannot be written: it is the keyword."""


def negated(proofs: Proofs, schema: Any, among: Facts, depth: int = MAX_DEPTH) -> Any:
    """Return a schema of other values `among` those that meet some conditions. Raises NotSupported if there is none.

    A value fails a schema if it fails one of its keywords: the opposite is any of the keywords' opposites. One that
    cannot be written is left out if there are others: no value is then allowed by mistake, and a few are missed.
    """
    if isinstance(schema, bool) or schema == {}:
        return schema is False
    if not isinstance(schema, dict):
        raise NotSupported(quoted(schema))
    if proofs.spend() or not depth:
        raise NotSupported("too many schemas")
    if "$ref" in schema:
        if (target := proofs.target(schema["$ref"])) is None or len(schema) > 1:
            raise NotSupported("$ref")
        return negated(proofs, target, among, depth - 1)
    return _some(proofs, among, [partial(_failing, proofs, key, schema, among, depth - 1) for key in schema])


def _some(proofs: Proofs, among: Facts, attempts: Iterable[Callable[[], Any]]) -> Any:
    """Return the schema of the values of any of these, but for those that are not supported if others are left."""
    parts, missed = list[Any](), None
    for attempt in attempts:
        try:
            parts.append(attempt())
        except NotSupported as error:
            missed = missed or error
    found = any_of([part for part in parts if not proofs.are_apart(among, Facts(proofs, part))])
    if missed and found is False:
        raise missed
    return found


def any_of(parts: Sequence[Any]) -> Any:
    """Return the schema of the values of any of these schemas."""
    left = [part for part in parts if part is not False]
    return left[0] if len(left) == 1 else bool(left) and {"anyOf": left}


def all_of(parts: Sequence[Any]) -> Any:
    """Return the schema of the values of all of these schemas."""
    if any(part is False for part in parts):
        return False
    left = [part for part in parts if part not in (True, {})]
    return left[0] if len(left) == 1 else not left or {"allOf": left}


def _failing(proofs: Proofs, key: str, schema: Json, among: Facts, depth: int) -> Any:
    """Return the schema of the values that fail a keyword."""
    kind = next((kind for kind, keys in KEYWORDS.items() if key in keys), None)
    if kind is not None and kind not in among.types:
        return False
    if key in ("const", "enum") and proofs.spend(len(str(schema[key])) // 4):
        raise NotSupported("too many values")
    if key in _ALONE:
        return any_of([*_ALONE[key](schema[key])])
    if key in _AMONG:
        return any_of([*_AMONG[key](proofs, schema, among, depth)])
    if kind is not None or key in STRICT:
        raise NotSupported(key)
    return False


def _of_all(proofs: Proofs, schema: Json, among: Facts, depth: int) -> Iterable[Any]:
    return [_some(proofs, among, [partial(negated, proofs, part, among, depth) for part in schema["allOf"]])]


def _of_any(proofs: Proofs, schema: Json, among: Facts, depth: int) -> Iterable[Any]:
    return [all_of([negated(proofs, part, among, depth) for part in schema["anyOf"]])]


def _of_one(proofs: Proofs, schema: Json, among: Facts, depth: int) -> Iterable[Any]:
    """Fail `oneOf` as `anyOf`, where no value matches two of its schemas."""
    if len(schema["oneOf"]) > MAX_BRANCHES or not all(starmap(proofs.apart, combinations(schema["oneOf"], 2))):
        raise NotSupported("oneOf")
    return _of_any(proofs, {"anyOf": schema["oneOf"]}, among, depth)


def _of_properties(proofs: Proofs, schema: Json, among: Facts, depth: int) -> Iterable[Any]:
    names = schema["properties"].items()
    return [_some(proofs, among, [partial(_with_other, proofs, name, part, among, depth) for name, part in names])]


def _of_other_names(proofs: Proofs, schema: Json, among: Facts, depth: int) -> Iterable[Any]:
    """Fail `additionalProperties` by one of the names that there may be."""
    if among.names is None or schema.get("patternProperties"):
        raise NotSupported("additionalProperties")
    others = sorted(among.names - schema.get("properties", {}).keys())
    return [_with_other(proofs, name, schema["additionalProperties"], among, depth) for name in others]


def _of_items(proofs: Proofs, schema: Json, among: Facts, depth: int) -> Iterable[Any]:
    """Fail `items` by any item, where no item that there may be matches it."""
    first = among.said("prefixItems") or "prefixItems" in schema  # other items than the first may match it
    if first or not any(proofs.apart(schema["items"], items) for items in among.said("items")):
        raise NotSupported("items")
    return [{"type": "array", "minItems": 1}]


def _of_contents(proofs: Proofs, schema: Json, among: Facts, depth: int) -> Iterable[Any]:
    if {"minContains", "maxContains"} & schema.keys():
        raise NotSupported("contains")
    return [{"type": "array", "items": negated(proofs, schema["contains"], ANYTHING, depth)}]


def _of_types(proofs: Proofs, schema: Json, among: Facts, depth: int) -> Iterable[Any]:
    named = {*([schema["type"]] if isinstance(schema["type"], str) else as_list(schema["type"]))}
    left = sorted(among.types - named - {"number" if "integer" in named else ""})
    if not left and "number" in among.types - named:
        raise NotSupported("type")  # there is no schema of the numbers that are not whole
    return [{"type": left}] if left else []


def _of_pattern(proofs: Proofs, schema: Json, among: Facts, depth: int) -> Iterable[Any]:
    """Fail a pattern by one of the texts that there may be, or by a character that is not of its class."""
    pattern = schema["pattern"]
    if among.values is not None:
        texts = [value for value in among.values if isinstance(value, str)]
        if any(matches(pattern, text) is None for text in texts):
            raise NotSupported("pattern")
        return [{"enum": [text for text in texts if not matches(pattern, text)]}]
    if (found := CLASS.fullmatch(str(pattern))) is None:
        raise NotSupported("pattern")
    other = f"[{found[1][1:]}]" if found[1].startswith("^") else f"[^{found[1]}]"
    return [{"type": "string", "pattern": f"^$|{other}" if found[2] == "+" else other}]


def _with_other(proofs: Proofs, name: str, schema: Any, among: Facts, depth: int) -> Any:
    """Return the schema of objects that have another value of a name than the schema allows."""
    other = negated(proofs, schema, Facts(proofs, {"allOf": among.named(name)}), depth)
    return other and {"type": "object", "required": [name], "properties": {name: other}, "additionalProperties": True}


def _other_values(values: Sequence[Any]) -> Iterator[Json]:
    """Yield schemas of all values but these."""
    kinds: dict[str, list[Any]] = {}
    for value in values:
        kinds.setdefault(type_of(value), []).append(value)
    yield {"type": sorted(TYPES - kinds.keys())}
    for kind, found in kinds.items():
        if kind == "boolean" and len({*found}) == 1:
            yield {"enum": [not found[0]]}  # draft 4 has no `const`
        elif kind == "string":
            yield {"type": "string", "pattern": other_texts(found)}
        elif kind == "number":
            edges = sorted({*found})
            yield {"type": "number", "exclusiveMaximum": edges[0]}
            yield {"type": "number", "exclusiveMinimum": edges[-1]}
            for low, high in pairwise(edges):
                yield {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        elif kind in ("array", "object"):
            if any(found):
                raise NotSupported("enum")
            yield {"type": kind, "minItems" if kind == "array" else "minProperties": 1}


def other_texts(texts: Sequence[str]) -> str:
    """Return the pattern of all texts but these. Raises NotSupported for too long ones.

    Worked example: ["a"] -> `^(?:a[\\s\\S]+|[^a][\\s\\S]*)?$`, but for its brackets.
    """
    if sum(map(len, texts)) > MAX_CHARS or max(map(len, texts)) > MAX_TEXT:
        raise NotSupported("enum")
    return f"^{_others({*texts})}$"


def _others(texts: set[str]) -> str:
    """Return a pattern of all texts but these. What they begin with decides how it goes on."""
    begins: dict[str, set[str]] = {}
    for text in texts - {""}:
        begins.setdefault(text[0], set()).add(text[1:])
    parts = [f"{_escaped(first)}{_others(rest)}" for first, rest in sorted(begins.items())]
    others = f"[^{''.join(map(_escaped, sorted(begins)))}]" if begins else ANY
    return f"(?:{'|'.join([*parts, f'{others}{ANY}*'])}){'' if '' in texts else '?'}"


def _escaped(char: str) -> str:
    return char if re.fullmatch("[0-9A-Za-z]", char) else f"\\x{{{ord(char):x}}}"


def _of_size(kind: str, key: str, step: int) -> Callable[[Any], list[Any]]:
    """Make the rule of a keyword of sizes, whose opposite is the other one with the next size."""

    def fails(size: Any) -> list[Any]:
        if type(size) is not int:
            raise NotSupported(key)
        return [{"type": kind, key: size + step}] if size + step >= 0 else []

    return fails


def _of_number(key: str) -> Callable[[Any], list[Any]]:
    def fails(bound: Any) -> list[Any]:
        if type(bound) not in (int, float):
            raise NotSupported(key)  # in draft 4 a flag
        return [{"type": "number", key: bound}]

    return fails


_ALONE: Mapping[str, Callable[[Any], Iterable[Any]]] = {
    "const": lambda value: _other_values([value]),
    "enum": lambda values: _other_values(as_list(values)),
    "required": lambda names: [
        {"type": "object", "properties": {name: False}, "additionalProperties": True} for name in as_list(names)
    ],
    **{
        f"min{name}": _of_size(kind, f"max{name}", -1)
        for kind, name in (("string", "Length"), ("array", "Items"), ("object", "Properties"))
    },
    **{
        f"max{name}": _of_size(kind, f"min{name}", 1)
        for kind, name in (("string", "Length"), ("array", "Items"), ("object", "Properties"))
    },
    "minimum": _of_number("exclusiveMaximum"),
    "exclusiveMinimum": _of_number("maximum"),
    "maximum": _of_number("exclusiveMinimum"),
    "exclusiveMaximum": _of_number("minimum"),
}
"""For each keyword the schemas of the values that fail it."""
_AMONG: Mapping[str, Callable[[Proofs, Json, Facts, int], Iterable[Any]]] = {
    "not": lambda proofs, schema, among, depth: [schema["not"]],
    "allOf": _of_all,
    "anyOf": _of_any,
    "oneOf": _of_one,
    "properties": _of_properties,
    "additionalProperties": _of_other_names,
    "items": _of_items,
    "contains": _of_contents,
    "type": _of_types,
    "pattern": _of_pattern,
}
"""The same for keywords that depend on others, or on what the values are among."""
