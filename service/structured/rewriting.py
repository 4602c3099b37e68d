"""JSON schemas without keywords that llguidance refuses: the same in keywords that it follows.

A rule is a function of one schema; its docstring says why the result allows the same values. What no rule can write is
refused with its place in the client's document.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, islice, permutations
from typing import Any

from service.schema.fields import Json
from service.structured.negation import NotSupported, all_of, any_of, negated
from service.structured.proofs import Facts, Proofs, as_list, has_address, same

MAPS = (
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
    "dependentRequired",
)
VALUES = ("const", "enum", "default", "example", "examples")
"""Keywords whose values are no schemas. Below every other keyword there may be a schema that a `$ref` names."""
CONDITION, DEPENDENT = ("if", "then", "else"), ("dependencies", "dependentRequired", "dependentSchemas")
MERGED = frozenset(("anyOf", "type", "const", "enum", "pattern", "required", "minItems", "minProperties"))
"""Keywords that mean the same beside others as in `allOf`."""
MAX_CASES, FEW = 256, 4
"""Cases that a rule writes one beside the other, and values of which it writes all arrays."""
REFUSED = {"not", "contains", "uniqueItems", "propertyNames", "unevaluatedItems", "unevaluatedProperties"}

WHY = {"oneOf": ": several of its schemas may match one value; use anyOf"}

Rule = Callable[[Proofs, Json], Any]


def rewritten(root: Json) -> Any:
    """Return the schema in such keywords. Raises ValueError for one that remains, with its place."""
    try:
        return _rewritten(root, Proofs(root))
    except _Refused as error:
        places = {id(part): place for part, place in _places(root, "$")}
        place = next((places[id(schema)] for schema in error.around if id(schema) in places), "$")
        raise ValueError(f"{place}.{error}") from None


class _Refused(ValueError):
    """A keyword that remains, and why. Some of the schemas `around` it, the inner first, are made by rules."""

    def __init__(self, message: str, around: list[Json]) -> None:
        super().__init__(message)
        self.around = around


def _rewritten(schema: Any, proofs: Proofs) -> Any:
    if not isinstance(schema, dict):
        return schema
    try:
        if has_address(schema) and schema.get("$schema", proofs.dialect) != proofs.dialect:
            raise _Refused("$schema is not supported here: it differs from that of the whole", [])
        for key, rule in RULES.items():
            if key in schema and (changed := _ruled(key, rule, proofs, schema)) is not schema:
                return _rewritten(changed, proofs)
        if remaining := REFUSED & schema.keys():
            raise _Refused(f"{min(remaining)} is not supported", [])
        return {key: inner(key, value, lambda part: _rewritten(part, proofs)) for key, value in schema.items()}
    except _Refused as error:
        error.around.append(schema)
        raise


def _ruled(key: str, rule: Rule, proofs: Proofs, schema: Json) -> Any:
    try:
        return rule(proofs, schema)
    except NotSupported as error:
        inside = "" if str(error) == key else f", with {error} in it"
        raise _Refused(f"{key} is not supported{inside}{WHY.get(key, '')}", []) from None


def _places(schema: Any, place: str) -> Iterator[tuple[Json, str]]:
    """Yield each object in a document with its place, as `$.properties.email` or `$.anyOf[0]`."""
    if isinstance(schema, dict):
        yield schema, place
    parts = schema.items() if isinstance(schema, dict) else enumerate(as_list(schema))
    for key, part in parts:
        yield from _places(part, f"{place}[{key}]" if isinstance(schema, list) else f"{place}.{key}")


def inner(key: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value of a keyword, with `change` made to the schemas in it."""
    if key in MAPS and isinstance(value, dict):
        return {name: change(schema) for name, schema in value.items()}
    if key in VALUES or key.startswith("x-"):
        return value
    return [change(part) for part in value] if isinstance(value, list) else change(value)


def tag(schema: Json) -> str | None:
    """Return the discriminator of `oneOf`, as OpenAPI and pydantic declare it."""
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) and "oneOf" in schema else None
    return name if isinstance(name, str) else None


def _without(schema: Json, *keys: str) -> Json:
    return {key: value for key, value in schema.items() if key not in keys}


def _joined(schema: Json, keys: Sequence[str], other: Any) -> Any:
    """Return the schema with another one in the place of keywords: names of properties keep their order."""
    rest = _without(schema, *keys)
    if other is True or other is False or not rest:
        return rest if other is True else other
    if not other.keys() <= MERGED - rest.keys():
        other = {"allOf": [*as_list(rest.get("allOf")), other]}
    found: Json = {}
    for key, value in schema.items():
        found |= other if key in keys else {} if key in found else {key: value}
    return found


def _possible(proofs: Proofs, schema: Json, other: Any) -> Any:
    """Return `other` without those of its cases that no value of the schema matches."""
    if not isinstance(other, dict) or other.keys() != {"anyOf"}:
        return other
    return any_of([case for case in other["anyOf"] if not proofs.apart(schema, case)])


def _not(proofs: Proofs, schema: Json) -> Any:
    """Write `not` as the opposite."""
    return _joined(schema, ("not",), negated(proofs, schema["not"], Facts(proofs, _without(schema, "not"))))


def _one_of(proofs: Proofs, schema: Json) -> Any:
    """Write `oneOf` as any of the schemas, each without the values of the others: none is then allowed by two of them.

    From a schema that is apart from another, nothing has to be left out for it. The name of a discriminator is required
    in all of them.
    """
    rest, branches = _without(schema, "oneOf", "discriminator"), schema["oneOf"]
    if (name := tag(schema)) is not None:
        branches = [{"allOf": [branch], "required": [name]} for branch in branches]
    branches = [branch for branch in branches if branch is not False]
    if len(branches) > MAX_CASES or proofs.spend(len(branches)):
        raise NotSupported("too many schemas")
    facts, cases = [Facts(proofs, branch, [rest]) for branch in branches], list[Any]()
    for index, branch in enumerate(branches):
        near = [
            other for i, other in enumerate(branches) if i != index and not proofs.are_apart(facts[index], facts[i])
        ]
        cases.append(all_of([branch, *(negated(proofs, other, facts[index]) for other in near)]))
    return _joined(schema, ("oneOf", "discriminator"), any_of(cases))


def _if(proofs: Proofs, schema: Json) -> Any:
    """Write `if` as two cases: what matches it and `then`, and what matches its opposite and `else`."""
    rest, condition = _without(schema, *CONDITION), schema.get("if", True)
    then, other = schema.get("then", True), schema.get("else", True)
    if "if" not in schema or (then in (True, {}) and other in (True, {})):
        return rest
    cases = [all_of([condition, then]), all_of([negated(proofs, condition, Facts(proofs, rest)), other])]
    return _joined(schema, CONDITION, _possible(proofs, rest, any_of(cases)))


def _dependent(proofs: Proofs, schema: Json) -> Any:
    """Write for each name two cases: objects without it, and those with it that match what depends on it."""
    rest, parts = _without(schema, *DEPENDENT), list[Any]()
    for name, needed in (item for key in DEPENDENT for item in schema.get(key, {}).items()):
        names = [needed] if isinstance(needed, str) else needed
        others = {"required": [name, *names]} if isinstance(names, list) else all_of([{"required": [name]}, names])
        cases = any_of([{"properties": {name: False}, "additionalProperties": True}, others])
        if needed not in (True, {}, []):
            parts.append(_possible(proofs, rest, cases))
    return _joined(schema, DEPENDENT, all_of(parts))


def _property_names(proofs: Proofs, schema: Json) -> Any:
    """Write that there is no other name than those that are listed, or that match a pattern."""
    facts = Facts(proofs, _rewritten(schema["propertyNames"], proofs))
    if "string" not in facts.types:
        allowed: Json = {"properties": {}}
    elif facts.values is not None and [part.keys() - {"type"} for part in facts.all] in ([{"const"}], [{"enum"}]):
        allowed = {"properties": dict.fromkeys(sorted(facts.texts), True)}
    else:
        allowed = {"patternProperties": {_pattern(facts): True}}
    return _joined(schema, ("propertyNames",), {**allowed, "additionalProperties": False})


def _pattern(facts: Facts) -> str:
    """Return the pattern of a schema of texts that has nothing but a pattern, or bounds of the length."""
    said = {key: value for schema in facts.all for key, value in schema.items() if key != "type"}
    if said.keys() == {"anyOf"}:  # the opposite of some texts
        said = next(({**part} for part in said["anyOf"] if part.get("type") == "string"), {})
        said.pop("type", None)
    if said.keys() == {"pattern"}:
        return str(said["pattern"])
    if not said or not said.keys() <= {"minLength", "maxLength"}:
        raise NotSupported("propertyNames")
    return rf"^[\s\S]{{{said.get('minLength', 0)},{said.get('maxLength', '')}}}$"


def _counted(proofs: Proofs, schema: Json) -> Any:
    """Write a case for each choice of optional names: as many as are missing are required, or all but so many are not.

    With open names, fewer than the least number of declared ones is a case of its own.
    """
    names, required = schema.get("properties"), {*as_list(schema.get("required"))}
    least, most = schema.get("minProperties", 0), schema.get("maxProperties")
    if not isinstance(names, dict) or not {type(least), type(most)} <= {int, type(None)}:
        return schema
    optional = [name for name, part in names.items() if name not in required and part is not False]
    found = {"additionalProperties": True} | schema
    open_names = schema.get("patternProperties") or schema.get("additionalProperties") is not False
    if not optional or (open_names and (least > len(required) + 1 or most is not None)):
        return schema
    if "minProperties" in schema:
        n = least - len(required)
        cases: list[Any] = [{"required": [*chosen]} for chosen in _chosen(proofs, optional, n)]
        if open_names:
            cases.append({"properties": dict.fromkeys(optional, False), "minProperties": least})
        found = _joined(found, ("minProperties",), any_of(cases) if n > 0 else True)
    if most is not None and found is not False:
        n = most - len(required)
        cases = [
            {"properties": dict.fromkeys({*optional} - {*chosen}, False), "additionalProperties": True}
            for chosen in _chosen(proofs, optional, n)
        ]
        found = _joined(found, ("maxProperties",), any_of(cases) if n < len(optional) else True)
    return found


def _chosen(proofs: Proofs, names: Sequence[str], n: int) -> list[tuple[str, ...]]:
    if not 0 <= n <= len(names):
        return []
    found = [*islice(combinations(names, n), MAX_CASES + 1)]
    if len(found) > MAX_CASES or proofs.spend(len(found) * len(names) // 16):
        raise NotSupported(f"more than {MAX_CASES} cases")
    return found


def _unique(proofs: Proofs, schema: Json) -> Any:
    """List all arrays of different values, if there are few values."""
    items, most = schema.get("items", True), schema.get("maxItems", MAX_CASES)
    if schema["uniqueItems"] is not True or most < 2:
        return _without(schema, "uniqueItems")
    listed, values = Facts(proofs, items).values or [], list[Any]()
    for value in listed[: FEW**2]:
        values += [] if any(same(value, other) for other in values) else [value]
    if not 0 < len(values) <= FEW or len(listed) > FEW**2 or "prefixItems" in schema:
        raise NotSupported("uniqueItems")
    lengths = range(schema.get("minItems", 0), min(most, len(values)) + 1)
    lists = [[*chosen] for n in lengths for chosen in permutations(values, n)]
    found = _joined(schema, ("uniqueItems",), {"enum": lists})
    return _without(found, "items") | {"items": items}


def _reference(proofs: Proofs, schema: Json) -> Any:
    """Leave out a type that the schema has to which `$ref` refers: llguidance takes nothing beside one in a circle."""
    if len(schema) == 1:
        return schema
    target, rest = proofs.target(schema["$ref"]), _without(schema, "$ref", "$schema")
    said = isinstance(target, dict) and rest == {"type": target.get("type")}
    return {"$ref": schema["$ref"]} if said else schema


RULES: Mapping[str, Rule] = {
    "$ref": _reference,
    "not": _not,
    "oneOf": _one_of,
    **dict.fromkeys(CONDITION, _if),
    **dict.fromkeys(DEPENDENT, _dependent),
    "propertyNames": _property_names,
    **dict.fromkeys(("minProperties", "maxProperties"), _counted),
    "uniqueItems": _unique,
}
