"""Counts of JSON's parts without a parser, against a parser's; the limits, each at its edge."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from service.api.openai.chat import ChatBody
from service.schema import structure
from service.schema.structure import BodyReading, Structure, StructureError

TEXT = st.text(st.sampled_from(list('"\\[]{},:.eE0 aé\n')) | st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    TEXT | NUMBERS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


@settings(deadline=None, max_examples=300)
@given(VALUES, st.booleans(), st.integers(1, 9))
def test_what_is_outside_strings_is_found_in_slices_of_any_size(value: Any, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "SLICE_BYTES", size)
        assert b"".join(structure._outside_strings(text)) == STRING.sub(b'""', text)


def listed(item: str, n: int) -> str:
    return f"[{','.join([item] * n)}]"


def fields_of(n: int) -> str:
    return "{" + ",".join(['"a":1'] * n) + "}"


EDGES = [
    (listed("[]", 2**15 - 1), listed("{}", 2**15), "32769 lists and objects"),
    (fields_of(49152), fields_of(49153), "49153 names of fields"),
    (listed('""', 5 * 2**14), listed('"[\\""', 5 * 2**14 + 1), "quotation marks"),
    (listed("0.5", 2**16), listed("1e5", 2**16 + 1), "65537 fractions"),
    (listed("7", 2**19 + 1), listed("7", 2**19 + 2), "524289 commas"),
]


@pytest.mark.parametrize(("most", "beyond", "words"), EDGES, ids=[words for *_, words in EDGES])
def test_each_limit_is_named_with_the_count(most: str, beyond: str, words: str) -> None:
    Structure().add(most.encode())
    with pytest.raises(StructureError, match=r"^the body has at least \d+ .*, the limit is \d+$") as caught:
        Structure().add(beyond.encode())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"), [("[" * 201 + "]" * 201, "recursion limit exceeded"), ("1" * 8_000_000, "number out of range")]
)
def test_the_parser_bounds_depth_and_digits(value: str, words: str) -> None:
    """In a body, and in the arguments of a call, which are JSON in a string."""
    function = {"name": "f", "arguments": f'{{"a": {value}}}'}
    calls = json.dumps([{"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}])
    for text, found in ((f'{{"messages": {value}}}', words), (f'{{"messages": {calls}}}', "must be a JSON object")):
        with pytest.raises(ValidationError, match=found):
            ChatBody.model_validate_json(text, context=BodyReading())


def test_the_arguments_of_all_calls_count_together() -> None:
    """Each is small, and none is parsed once a limit is passed."""

    def body(n_calls: int) -> str:
        function = {"name": "f", "arguments": json.dumps({"a": [[]] * 8000})}
        calls = [{"id": f"call{number}", "type": "function", "function": function} for number in range(n_calls)]
        return json.dumps({"messages": [{"role": "assistant", "tool_calls": calls}]})

    ChatBody.model_validate_json(body(4), context=BodyReading())
    with pytest.raises(ValidationError, match=r"the arguments of all calls has at least \d+ lists"):
        ChatBody.model_validate_json(body(5), context=BodyReading())
