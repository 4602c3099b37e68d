"""Changes to JSON schemas before llguidance compiles them.

Objects are closed: they have only the declared properties. The rules also change bounds that llguidance misreads,
keywords that it does not read in the way that they are written, and leave out keywords that constrain nothing.

llguidance reads numbers as doubles, and must not read another number. A bound may move inward, because every answer
within the closer bound is within the other. A value of `const` or `enum` may not change.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial, reduce
from itertools import product
from typing import Any, TypeGuard

from model.errors import quoted
from service.schema.fields import Json
from service.structured.proofs import as_list, parts
from service.structured.rewriting import CONDITION, MAPS, inner, rewritten, tag
from service.structured.strings import PATTERNS, formatted, patterned

JOINED = ("if", "not", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties")
CHOOSING = ("allOf", "oneOf")
LOWER, UPPER = ("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")
LIMITS = frozenset((*LOWER, *UPPER))
BOUNDS = ((*LOWER, UPPER, 1), (*UPPER, LOWER, -1))
LEAST_STEP = 1e-9
MAX_EXACT = 2**53
LARGEST = 2**63 - 2**10
"""The largest double below 2^63, where llguidance's integers end."""
COUNTS_OTHERS = ("additionalProperties", "minProperties")

COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
SHAPES: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(("oneOf", "anyOf", "allOf", "enum"), (list, "a list")),
    **dict.fromkeys(MAPS, (dict, "an object")),
    **dict.fromkeys(COUNTS, (int, "a whole number")),
    **dict.fromkeys(("not", *CONDITION), (dict | bool, "a schema")),
    "type": (str | list, "a name or names"),
}
PARTS: Mapping[str, Any] = {
    **dict.fromkeys(("oneOf", "anyOf", "allOf"), dict | bool),
    **dict.fromkeys(("required", "type"), str),
}
"""Keywords that the rules read, and the types of their values and of what is in their lists."""
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", *PATTERNS)
"""The values of `format` that are enforced. In JSON Schema any other value is a remark."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "propertyNames": (True, {}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "not": (False,),
}
"""Keywords that llguidance refuses -> values that constrain nothing."""
REMARKS = ("title", "description", "markdownDescription", "$comment", "default", "example", "examples")
"""Keywords for readers, unless they are the names of schemas. They would count for the length of a grammar."""
LATER: Mapping[str, Sequence[str]] = {
    "/draft-04/": ("const", "propertyNames", "contains", "if", "then", "else", "dependentRequired", "dependentSchemas"),
    "/draft-06/": ("if", "then", "else", "dependentRequired", "dependentSchemas"),
    "/draft-07/": ("dependentRequired", "dependentSchemas"),
}
"""Keywords that a draft does not have yet. In it they are remarks."""
DIALECTS = "json-schema.org/"


def closed(schema: Json) -> Json:
    """Return the schema with `additionalProperties: false` if it has `properties` and does not say otherwise.

    Without it a model adds properties of its own until max_tokens.
    """
    names = schema.get("properties")
    if isinstance(names, dict) and not any(key in schema for key in COUNTS_OTHERS):
        required = schema.get("required", [])
        if isinstance(required, list) and all(name in names for name in required if isinstance(name, str)):
            return schema | {"additionalProperties": False}
    return schema


def joins(schema: Any) -> bool:
    """Return whether several schemas apply to one value: one may declare properties that another does not.

    The branches of a `oneOf` with a discriminator do not.
    """
    if not isinstance(schema, dict):
        return False
    choosing = [key for key in CHOOSING if key in schema and (key == "allOf" or tag(schema) is None)]
    several = any(not isinstance(schema[key], list) or len(schema[key]) != 1 for key in choosing)
    beside = "properties" in schema and any(key in schema for key in ("anyOf", "oneOf", "allOf", "$ref"))
    if several or beside or any(key in schema for key in JOINED):
        return True
    found: list[bool] = []
    for key, value in schema.items():
        inner(key, value, lambda part: found.append(joins(part)))
    return any(found)


def each(schema: Any, rule: Callable[[Json], Json]) -> Any:
    """Return the schema with a rule applied to each schema in it, then to itself."""
    if not isinstance(schema, dict):
        return schema
    within = partial(each, rule=rule)
    return rule({key: inner(key, value, within) for key, value in schema.items()})


def bounded(schema: Json) -> Json:
    """Return the schema with inclusive bounds in place of exclusive ones that llguidance would read as inclusive.

    It misreads whole numbers whose other bound is less than 1 further from 0, as in "above 0, at most 0.5".
    """
    changed = dict(schema)
    for name, inclusive, others, sign in BOUNDS if LIMITS & schema.keys() else ():
        bound = changed.get(name)
        if not _is_number(bound) or bound != int(bound) or sign * bound < 0:
            continue
        inside = bound + sign * max(LEAST_STEP, math.ulp(bound))
        given = changed.get(inclusive, inside)
        near = any(_is_number(changed.get(other)) and abs(changed[other] - bound) < 1 for other in others)
        if near and _is_number(given):
            changed[inclusive] = sign * max(sign * inside, sign * given)
            del changed[name]
    return changed


def readable(schema: Json, unknown: Collection[str] = ()) -> Json:
    """Return the schema without keywords that constrain nothing, and with whole numbers where llguidance needs them.

    It leaves out keywords that are `unknown`, formats that are not known, and `$schema` of an unknown dialect.
    """
    changed = {key: value for key, value in schema.items() if key not in unknown and not _says_nothing(key, value)}
    if "contains" not in changed:
        changed = {key: value for key, value in changed.items() if key not in ("minContains", "maxContains")}
    for key in COUNTS:
        if isinstance(number := changed.get(key), float) and number.is_integer():
            changed[key] = int(number)
    return changed


def _says_nothing(key: str, value: Any) -> bool:
    if key in REMARKS:
        return not isinstance(value, dict)
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    if key == "$schema":
        return isinstance(value, str) and DIALECTS not in value
    return any(type(value) is type(other) and value == other for other in NEUTRAL.get(key, ()))


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and abs(value) < MAX_EXACT


def exact(schema: Json) -> Json:
    """Return the schema with numbers that llguidance reads exactly. Raises ValueError if there are none for it."""
    changed = dict(schema)
    for name in ("const", "enum"):
        for number in _numbers(changed.get(name)):
            if not _is_exact(number):
                raise ValueError(f"{name} has the number {quoted(number)}, which has too many digits: use a string")
    bounds = {name: bound for name in schema if name in LIMITS and (bound := _number(schema, name)) is not None}
    for name, bound in bounds.items():
        if abs(bound) > MAX_EXACT:
            changed[name] = _inward(name, bound)
    if changed.get("type") == "integer" and (step := _number(changed, "multipleOf")):
        changed["multipleOf"] = Fraction(repr(step)).numerator  # the whole ones among the multiples of a fraction
    for low, high in product(bounds.keys() & LOWER, bounds.keys() & UPPER):
        first, last = bounds[low], bounds[high]
        if first <= last and changed[low] > changed[high]:
            raise ValueError(f"{low} {quoted(first)} and {high} {quoted(last)} have too many digits")
    return changed


def _numbers(value: Any) -> Iterator[float]:
    if type(value) in (int, float):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)


def _is_exact(number: float) -> bool:
    """Return whether a double holds the number: a whole one, or one of at most 15 digits and 22 places."""
    if type(number) is float and not math.isfinite(number):
        return True  # no JSON: the grammar is refused when it is written
    if number == int(number):
        return abs(number) <= LARGEST and float(number) == number
    return float(f"{number:.15g}") == number == float(f"{number:.22f}")


def _inward(name: str, bound: float) -> int:
    """Return the nearest double that is not beyond the bound, from -LARGEST to LARGEST."""
    sign = 1 if name in UPPER else -1  # an upper bound moves down, a lower one up
    outer = max(-LARGEST, min(LARGEST, sign * int(bound)))
    if sign * int(bound) < -LARGEST:
        raise ValueError(f"{name} {quoted(bound)} is beyond {sign * -LARGEST}")
    near = float(outer)
    return sign * int(near if near <= outer else math.nextafter(near, -math.inf))


def _number(schema: Json, name: str) -> float | None:
    """Return the bound of a name; None without one, and for what is no number in JSON."""
    value = schema.get(name)
    return value if type(value) is int or (type(value) is float and math.isfinite(value)) else None


def countable(schema: Json) -> Json:
    """Return the schema. Raises ValueError where one name could count twice: the grammar does not know earlier ones."""
    least, names = schema.get("minProperties"), schema.get("required", [])
    others = schema.get("patternProperties") or schema.get("additionalProperties") is not False
    if _is_number(least) and isinstance(names, list) and others and least > len(set(map(str, names))) + 1:
        raise ValueError(f"minProperties {least} may be at most 1 more than the names in required with open names")
    return schema


RULES = (exact, bounded, countable, patterned, formatted)
"""Each changes one schema, without those in it."""


def shaped(schema: Json) -> Json:
    """Return the schema. Raises ValueError for a keyword whose value has another type, which would be no schema."""
    for key, value in schema.items():
        kind, name = SHAPES.get(key, (object, ""))
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"{key} must be {name}, got {quoted(value)}")
        part = PARTS.get(key, object)
        if part is not object and not all(isinstance(one, part) for one in as_list(value)):
            raise ValueError(f"{key} must have {'names' if part is str else 'schemas'}, got {quoted(value)}")
    return schema


def used(root: Json) -> Json:
    """Return the schema without definitions that no `$ref` names: some files define more than they use."""
    left, places = dict(root), [key for key in ("$defs", "definitions") if isinstance(root.get(key), dict)]
    queue: list[Any] = [{key: value for key, value in root.items() if key not in places}]
    for key in places:
        left[key] = {}
    while queue:
        named = (part.get("$ref") for part in parts(queue.pop()))
        for reference in (found for found in named if isinstance(found, str)):
            _, key, name, *_ = [*reference.split("/", 3), "", ""]
            if not reference.startswith("#/") and reference != "#":
                return root
            if key in places and name not in left[key]:
                if name not in root[key]:
                    return root
                left[key][name] = root[key][name]
                queue.append(root[key][name])
    return left


def enforceable(schema: Json) -> Any:
    """Return the schema as llguidance reads it right. Raises ValueError, naming the keyword, if there is none."""
    unknown = next((keys for draft, keys in LATER.items() if draft in str(schema.get("$schema"))), ())
    known = each(used(schema), lambda part: shaped(readable(part, unknown)))
    changed = rewritten(known)
    if isinstance(changed, bool):
        if not changed:
            raise ValueError("no value meets all of it")
        return {}
    rules = RULES if joins(known) else (closed, *RULES)
    return each(changed, lambda part: reduce(lambda found, rule: rule(found), rules, part))


def mixes_names(schema: Json) -> bool:
    """Return whether an object has two kinds of names: declared ones, those of patterns, and any others."""
    mixed = []

    def note(part: Json) -> Json:
        declared = part.get("properties") or part.get("required")
        others = part.get("additionalProperties") is not False
        mixed.append(sum(map(bool, (declared, part.get("patternProperties"), others))) > 1)
        return part

    each(schema, note)
    return any(mixed)
