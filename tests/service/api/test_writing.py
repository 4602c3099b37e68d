"""The JSON of large answers, against orjson's."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api import writing
from service.api.writing import written

LEAVES = st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.none()
ANSWERS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text('ab"\\', max_size=3), inner, max_size=3)
)


@given(ANSWERS)
def test_an_answer_in_parts_is_the_same(answer: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "PART", 2)
        assert written(answer) == orjson.dumps(answer)


def test_a_long_list_is_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    dumps = orjson.dumps

    def counted(value: Any) -> bytes:
        seen.append(len(value))
        return dumps(value)

    monkeypatch.setattr(orjson, "dumps", counted)
    answer = {"choices": [{"logprobs": {"content": [{"token": "a"}] * 3000}}]}
    assert written(answer) == dumps(answer)
    assert seen == [1024, 1024, 952, 1]
