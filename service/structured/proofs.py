"""What JSON schemas say of every value that they allow, and the proof that two schemas allow no common value.

A fact may be missing: then it proves nothing. None is wrong. So a proof may fail, and never errs.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any
from urllib.parse import unquote

from pydantic_core import SchemaError, SchemaValidator, core_schema

from service.schema.fields import Json

TYPES = frozenset(("null", "boolean", "object", "array", "number", "string"))
RANGES = {
    "string": (("minLength",), ("maxLength",)),
    "array": (("minItems",), ("maxItems",)),
    "object": (("minProperties",), ("maxProperties",)),
    "number": (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
}
"""For each type the keywords of the least size and of the greatest, or of the least number and of the greatest."""
OTHERWISE = re.compile(r"\\[^dDwWsS.\\/+*?()\[\]{}|^$-]|&&|~~|--|\[[^]]*\[|\[\^?\]|\(\?|\{,")
"""What Rust reads in another way, or not at all: some escapes, operations on sets, flags and look-around."""
MAX_DEPTH = 5
"""Schemas inside of schemas that a proof looks at: references may lead in a circle."""
MAX_STEPS = 10_000
"""Steps for one document, which take some tenths of a second at most. After them nothing more is proved."""


def type_of(value: Any) -> str:
    """Return the type of a value in JSON. A whole number is a number."""
    kinds = {type(None): "null", bool: "boolean", dict: "object", list: "array", str: "string"}
    return kinds.get(type(value), "number")


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, and no elements of anything else."""
    return value if isinstance(value, list) else []


class Facts:
    """The conditions that a value meets: `schema`, the schemas that it joins or refers to, and those `beside` it."""

    def __init__(self, proofs: "Proofs | None", schema: Any, beside: Sequence[Json] = ()) -> None:
        self.all = list(beside)
        self.impossible = False
        self._add(proofs, schema, MAX_DEPTH)

    def _add(self, proofs: "Proofs | None", schema: Any, depth: int) -> None:
        self.impossible |= schema is False
        if not isinstance(schema, dict) or not depth or (proofs and proofs.spend()):
            return
        if "$ref" in schema:  # in older drafts nothing beside it counts
            self._add(proofs, proofs and proofs.target(schema["$ref"]), depth - 1)
            return
        self.all.append(schema)
        for part in as_list(schema.get("allOf")):
            self._add(proofs, part, depth - 1)

    @cached_property
    def types(self) -> frozenset[str]:
        """Return the types that a value may have."""
        found = TYPES
        for schema in self.all:
            names = as_list(schema.get("type", [*TYPES])) or [schema["type"]]
            found &= {"number" if name == "integer" else name for name in names if isinstance(name, str)}
        return found if (values := self.values) is None else found & {*map(type_of, values)}

    @cached_property
    def values(self) -> list[Any] | None:
        """Return all values there may be, None if no list of them is known."""
        lists = ([schema["const"]] if "const" in schema else schema.get("enum") for schema in self.all)
        return next((values for values in lists if isinstance(values, list)), None)

    @cached_property
    def texts(self) -> frozenset[str]:
        """Return the texts among the values."""
        return frozenset(value for value in self.values or () if isinstance(value, str))

    @cached_property
    def required(self) -> set[str]:
        """Return names that an object has."""
        return {name for schema in self.all for name in as_list(schema.get("required")) if isinstance(name, str)}

    def named(self, name: str) -> list[Any]:
        """Return the schemas that the value of a name in an object meets."""
        found = []
        for schema in self.all:
            names = schema.get("properties", {})
            if isinstance(names, dict) and name in names:
                found.append(names[name])
            elif "additionalProperties" in schema and not schema.get("patternProperties"):
                found.append(schema["additionalProperties"])
        return found

    @cached_property
    def names(self) -> set[str] | None:
        """Return all names that an object may have, None if there may be any."""
        closing = (schema for schema in self.all if schema.get("additionalProperties") is False)
        closed = (schema.get("properties", {}) for schema in closing if not schema.get("patternProperties"))
        return next(({*names} for names in closed if isinstance(names, dict)), None)

    def said(self, key: str) -> list[Any]:
        """Return the values of a keyword."""
        return [schema[key] for schema in self.all if key in schema]

    def range(self, kind: str) -> tuple[float, float]:
        """Return the least and the greatest size of a value of a type, or the least and the greatest number."""
        low, high = (
            [schema[key] for schema in self.all for key in keys if type(schema.get(key)) in (int, float)]
            for keys in RANGES[kind]
        )
        return max(low, default=-math.inf), min(high, default=math.inf)

    @property
    def choices(self) -> Iterator[list[Any]]:
        """Yield lists of schemas: a value meets at least one of each list."""
        return filter(None, (as_list(schema.get(key)) for schema in self.all for key in ("anyOf", "oneOf")))


ANYTHING = Facts(None, True)
"""No condition."""


class Proofs:
    """The proofs about a document's schemas. No reference is followed where parts have addresses of their own."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self.dialect = root.get("$schema")
        self._left = MAX_STEPS

    @cached_property
    def _moved(self) -> bool:
        return any(has_address(part) for part in parts(self._root) if part is not self._root)

    def spend(self, steps: int = 1) -> bool:
        """Count steps; return whether they are too many."""
        self._left -= steps
        return self._left < 0

    def target(self, reference: Any) -> Any:
        """Return the schema at a pointer into this document, None for any other reference."""
        if self._moved or not isinstance(reference, str) or not f"{reference}/".startswith("#/"):
            return None
        found: Any = self._root
        for step in reference.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, dict | bool) else None

    def apart(self, one: Any, other: Any, depth: int = MAX_DEPTH) -> bool:
        """Return whether no value meets both schemas, as far as that is proved."""
        return self.are_apart(Facts(self, one), Facts(self, other), depth)

    def are_apart(self, one: Facts, other: Facts, depth: int = MAX_DEPTH) -> bool:
        """Return whether no value meets all conditions of both, as far as that is proved."""
        if self.spend() or not depth:
            return False
        if one.impossible or other.impossible:
            return True
        if all(self._differ(kind, one, other, depth) for kind in one.types & other.types):
            return True
        return self._split(one, other, depth) or self._split(other, one, depth)

    def _differ(self, kind: str, one: Facts, other: Facts, depth: int) -> bool:
        """Return whether no value of a type meets both."""
        if kind in RANGES:
            (low, high), (least, most) = one.range(kind), other.range(kind)
            if low > most or least > high:
                return True
        return kind == "object" and any(
            self.apart(first, second, depth - 1)
            for name in sorted(one.required | other.required)
            for first in one.named(name) or [True]
            for second in other.named(name) or [True]
        )

    def _split(self, one: Facts, other: Facts, depth: int) -> bool:
        """Return whether each value of the one, or each schema among which it chooses, is no value of the other."""
        if (values := one.values) is not None and not any(self._meets(value, other, depth) for value in values):
            return True
        return any(
            all(self.are_apart(Facts(self, branch, one.all), other, depth - 1) for branch in branches)
            for branches in one.choices
        )

    def _meets(self, value: Any, facts: Facts, depth: int) -> bool:
        """Return whether a value may meet all conditions."""
        if facts.impossible or type_of(value) not in facts.types:
            return False
        if self.spend() or not depth:
            return True
        if isinstance(value, str) and facts.values is not None and value not in facts.texts:
            return False
        if not isinstance(value, str) and not any(same(value, other) for other in facts.values or [value]):
            return False
        if isinstance(value, str) and any(matches(pattern, value) is False for pattern in facts.said("pattern")):
            return False
        if isinstance(value, dict) and not facts.required <= value.keys():
            return False
        if (kind := type_of(value)) in RANGES:
            low, high = facts.range(kind)
            if not low <= (value if kind == "number" else len(value)) <= high:
                return False
        parts = value.items() if isinstance(value, dict) else ()
        return all(
            self._meets(part, Facts(self, schema), depth - 1) for name, part in parts for schema in facts.named(name)
        ) and all(
            any(self._meets(value, Facts(self, branch), depth - 1) for branch in branches) for branches in facts.choices
        )


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in JSON, in which true is not 1."""
    if type_of(one) != type_of(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(part, other[name]) for name, part in one.items())
    return bool(one == other)


def matches(pattern: Any, text: str) -> bool | None:
    """Return whether a text matches a pattern, None if that is not known.

    Rust's library searches in linear time. It reads some patterns in another way than ECMA-262 does.
    """
    if not isinstance(pattern, str) or OTHERWISE.search(pattern) or not (text.isascii() and text.isprintable()):
        return None
    validator = _searching(pattern)
    return validator and validator.isinstance_python(text)


@lru_cache(64)
def _searching(pattern: str) -> SchemaValidator | None:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError:
        return None


def has_address(part: Json) -> bool:
    """Return whether a schema has an address of its own, to which references in it are relative."""
    return any(isinstance(part.get(name), str) for name in ("$id", "id", "$anchor", "$dynamicAnchor"))


def parts(value: Any) -> Iterator[Json]:
    """Yield all objects in a value. Some are no schemas, as those in `enum`: then fewer references are followed."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        yield from chain.from_iterable(map(parts, value.values() if isinstance(value, dict) else value))
