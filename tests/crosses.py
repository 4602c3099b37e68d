"""Which rows of a cross of values `make test` tries: so many that each two values meet. `make test-full` has the rest.

A cross has three or more factors: values of a `parametrize`, or those of a fixture. `@pytest.mark.each` is for two
factors that do not interact, and for a cross whose rows are slow: each value is in a row.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, groupby
from typing import Any

import pytest


def left_out(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the rows that `make test` leaves out; `items` are in the order in which pytest has collected them."""
    for _, group in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        rows = [*group]
        meet = 1 if rows[0].get_closest_marker("each") else 2
        if len(rows) > 1 and len(factors(rows[0])) > meet:
            tried = {*covering([factors(row) for row in rows], meet)}
            yield from (row for i, row in enumerate(rows) if i not in tried)


def factors(item: pytest.Item) -> tuple[Any, ...]:
    """Return the values of each factor of a test. Names in one `parametrize` are one factor."""
    values = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    named = [mark.args[0] for mark in item.iter_markers("parametrize")]
    split = [names.split(",") if isinstance(names, str) else names for names in named]
    joined = [tuple(values.pop(name.strip(), None) for name in names) for names in split]
    return (*joined, *values.values())


def covering(rows: Sequence[tuple[Any, ...]], meet: int = 2) -> list[int]:
    """Return the numbers of rows that have all groups of values at `meet` places that the given rows have."""
    groups = [set(combinations(enumerate(map(str, row)), meet)) for row in rows]
    missing, found = set().union(*groups), []
    while missing:
        best = max(range(len(rows)), key=lambda i: len(groups[i] & missing))
        missing -= groups[best]
        found.append(best)
    return found
