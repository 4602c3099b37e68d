"""Updates of a sequence: joined while nobody reads, and split into tokens."""

from functools import reduce

import pytest

from model.batch import TokenLogprob
from service.engine.mailbox import merge
from service.engine.messages import Admitted, PrefixMiss, Update
from service.generation.choice import split

SCORES = tuple(TokenLogprob(token, -0.5, ()) for token in (7, 8, 9))
WHOLE = [
    Update(1, (7, 8, 9), SCORES, admitted=Admitted(3, 0.5, miss=PrefixMiss(2, "new")), finish="stop", processed=4),
    Update(1, (7, 8, 9), finish="error", failure="x", fault="y"),
    Update(1, (7,), SCORES[:1], finish="length"),
    Update(1, finish="timeout", embedding=(1.0,)),
    Update(1, (7, 8), embedding=(1.0,), prompt_logprobs=SCORES),
]


@pytest.mark.parametrize("whole", WHOLE)
def test_parts_have_one_token_each_and_are_the_whole_together(whole: Update) -> None:
    parts = split(whole)
    assert [len(part.tokens) for part in parts] == [1] * len(whole.tokens) or not whole.tokens
    assert all(part.finish is None for part in parts[:-1])
    assert reduce(merge, parts) == whole
