"""Random JSON schemas of the kinds that people write, small enough for a short answer."""

import random
from typing import Any

Schema = dict[str, Any]
NAMES = ("name", "age", "tags", "id", "kind", "at")


def random_schema(rng: random.Random) -> Schema:
    """An object, an array or a choice of both, two levels deep; now and then with a definition that is referred to."""
    schema = rng.choice((object_schema, _array, _any_of))(rng, 2)
    if rng.random() < 0.3:
        return {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"], "$defs": {"x": schema}}
    return schema


def _any(rng: random.Random, depth: int) -> Schema:
    kinds = [_string, _integer, _number, _boolean, _constant, _enum, _pattern, _nullable]
    return rng.choice(kinds + [object_schema, _array, _any_of] * 2 if depth else kinds)(rng, depth - 1)


def object_schema(rng: random.Random, depth: int) -> Schema:
    """An object of one to three fields, `depth` levels deep below."""
    names = rng.sample(NAMES, rng.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: _any(rng, depth) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    return {"type": "array", "items": _any(rng, depth), "minItems": least, "maxItems": least + rng.randint(0, 2)}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth) for _ in range(rng.randint(2, 3))]}


def _string(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 9)}


def _integer(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(-1000, 1000)
    return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 2000)}


def _number(rng: random.Random, depth: int) -> Schema:
    return {"type": "number", "exclusiveMinimum": 0, "maximum": rng.choice((1, 2.5, 100))}


def _boolean(rng: random.Random, depth: int) -> Schema:
    return {"type": "boolean"}


def _constant(rng: random.Random, depth: int) -> Schema:
    return {"const": rng.choice(("fixed", 7, None, [1, "ü"], {"k": False}))}


def _enum(rng: random.Random, depth: int) -> Schema:
    return {"enum": rng.sample(["red", "green", "blü", 1, 2, None, 'a "quote"', "tab\t"], 3)}


def _pattern(rng: random.Random, depth: int) -> Schema:
    return {"type": "string", "pattern": rng.choice((r"^[a-z]{2,5}$", r"^\d{3}-\d{2}$", r"^(ab|cd)+$"))}


def _nullable(rng: random.Random, depth: int) -> Schema:
    return {"type": [rng.choice(("string", "integer", "boolean")), "null"]} | {"maxLength": 8}
