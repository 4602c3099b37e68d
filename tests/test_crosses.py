"""Rows that `make test` tries of a cross have each two values that meet in any row."""

from itertools import combinations, product

import pytest

from tests.crosses import covering, factors

ROWS = [row for row in product("abcd", (1, 2, 3), (False, True)) if row[:2] != ("a", 1)]


@pytest.mark.parametrize("meet", [1, 2, 3])
def test_values_meet(meet: int) -> None:
    tried = [ROWS[i] for i in covering(ROWS, meet)]
    assert len(tried) <= (4, 13, len(ROWS))[meet - 1]
    for places in combinations(range(3), meet):
        assert {tuple(row[i] for i in places) for row in tried} == {tuple(row[i] for i in places) for row in ROWS}


@pytest.fixture(params=["x"])
def value(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("number", [1])
@pytest.mark.parametrize(("letter", "flag"), [("a", True)])
def test_names_of_one_list_are_one_factor(
    letter: str, flag: bool, number: int, value: str, request: pytest.FixtureRequest
) -> None:
    assert {*factors(request.node)} == {(letter, flag), (number,), value}
