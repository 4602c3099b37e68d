"""The compiler of a small vocabulary, and what the grammar of a JSON schema takes."""

import json
from typing import Any

from llguidance import LLMatcher

from model.grammar.compiler import Compiler
from service.structured.constraint import json_constraint
from tests.fakes import IntegerTokenizer

COMPILER = Compiler.of(IntegerTokenizer(), [0], 256)


def takes(schema: Any, value: Any) -> bool:
    """Whether the grammar of the schema accepts the JSON of a value to its end."""
    matcher = COMPILER.compile(json_constraint(schema, "x").serialized())
    assert isinstance(matcher, LLMatcher)
    for token in json.dumps(value).encode():
        matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
        if not matcher.validate_tokens([token]):
            return False
        matcher.consume_token(token)
    return matcher.is_accepting()
