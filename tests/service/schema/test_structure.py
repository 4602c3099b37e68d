"""Counts of JSON's parts without a parser, against a parser's; the limits, each at its edge."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from service.api.openai.schema import ChatBody
from service.schema import structure
from service.schema.structure import Reading, Structure, StructureError

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


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@settings(deadline=None, max_examples=300)
@given(VALUES, st.integers(1, 9), st.integers(1, 5))
def test_a_text_passes_up_to_its_own_depth(value: Any, size: int, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "SLICE_BYTES", size)
        patch.setattr(structure, "MAX_DEPTH", limit)
        assert passes(json.dumps(value)) == (depth_of(value) <= limit)


def passes(text: str) -> bool:
    try:
        Structure().add(text.encode())
    except StructureError:
        return False
    return True


def listed(item: str, n: int) -> str:
    return f"[{','.join([item] * n)}]"


EDGES = [
    (listed("[]", structure.MAX_CONTAINERS - 1), listed("{}", structure.MAX_CONTAINERS), "32769 lists and objects"),
    *(
        ("{" + ",".join(['"a":1'] * n) + "}", "{" + ",".join(['"a":1'] * (n + 1)) + "}", "49153 names of fields")
        for n in [structure.MAX_NAMES]
    ),
    (listed('""', structure.MAX_STRINGS), listed('"[\\""', structure.MAX_STRINGS + 1), "quotation marks"),
    (listed("0.5", structure.MAX_FRACTIONS), listed("1e5", structure.MAX_FRACTIONS + 1), "65537 fractions"),
    (listed("7", structure.MAX_ELEMENTS + 1), listed("7", structure.MAX_ELEMENTS + 2), "524289 commas"),
    ("[" * 64 + "]" * 64, '[{"a":' * 32 + "[" + "]" + "}]" * 32, "65 levels of lists and objects, the limit is 64"),
    (listed("-" + "1" * 511, 9), listed("1" * 512 + "." + "1", 9), "513 characters in one number, the limit is 512"),
]


@pytest.mark.parametrize(("most", "beyond", "words"), EDGES, ids=[words for *_, words in EDGES])
def test_each_limit_is_named_with_the_count(most: str, beyond: str, words: str) -> None:
    Structure().add(most.encode())
    with pytest.raises(StructureError, match=r"^the body has at least \d+ .*, the limit is \d+$") as caught:
        Structure().add(beyond.encode())
    assert words in str(caught.value)


def test_a_number_is_measured_across_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "SLICE_BYTES", 100)
    assert passes("1" * 512)
    assert not passes("1" * 513)
    assert passes(listed("1" * 300 + '","' + "1" * 300, 3))


def test_the_arguments_of_all_calls_count_together() -> None:
    """Each is small, and none is parsed once a limit is passed."""

    def body(n_calls: int) -> str:
        function = {"name": "f", "arguments": json.dumps({"a": [[]] * 8000})}
        calls = [{"id": f"call{number}", "type": "function", "function": function} for number in range(n_calls)]
        return json.dumps({"messages": [{"role": "assistant", "tool_calls": calls}]})

    ChatBody.model_validate_json(body(4), context=Reading())
    with pytest.raises(ValidationError, match=r"the arguments of all calls has at least \d+ lists"):
        ChatBody.model_validate_json(body(5), context=Reading())
