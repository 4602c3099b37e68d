"""The plan of short slices, under Triton's interpreter: beside the same in Python, for random steps."""

import random

import pytest
import torch

from model.attention.tiles import SHORT
from model.batch import PAGE_SIZE
from model.kernels.cuda.attention import ITEM
from tests.model.kernels.interpreter import unchecked

SPLIT, FAN = 32, 2
UNITS = (SPLIT, SPLIT * FAN, SPLIT * FAN**2, 2**30)
Row = tuple[int, int, int, int, int]
"""row, n_queries, start, first_key, page."""


def random_rows(pick: random.Random) -> list[Row]:
    """Short slices, longer ones and padding, some of them with a window."""
    rows, row, page = list[Row](), 0, 0
    for _ in range(pick.randrange(1, 40)):
        n_queries = pick.choice([0, 1, 1, 1, 3, SHORT, SHORT + 1])
        start = pick.choice([0, 31, 32, 127, 128, pick.randrange(600), 2**33 + pick.randrange(600)])
        first_key = max(0, start - pick.randrange(300)) if start < 2**33 else start - pick.randrange(300)
        rows.append((row, n_queries, start, first_key, page) if n_queries else (0, 0, 0, 0, 0))
        row, page = row + n_queries, page + 12
    return rows


def parts(row: Row, unit: int) -> list[tuple[int, int, int, int, int, int, int]]:
    """The items of a slice without the place of their sums."""
    at, n_queries, start, first_key, page = row
    origin = first_key // UNITS[2] * UNITS[2]
    here, offset = start - origin, first_key - origin
    firsts = range(offset // unit * unit, here + n_queries, unit) if 0 < n_queries <= SHORT else []
    return [(at, n_queries, here, offset, page - offset // PAGE_SIZE, low, low + unit) for low in firsts]


@pytest.mark.parametrize("seed", range(4))
def test_plan(seed: int) -> None:
    unchecked()
    from model.kernels.cuda.attention.plan import plan

    pick = random.Random(seed)
    rows = random_rows(pick)
    short = [row[1] for row in rows if 0 < row[1] <= SHORT]
    n_items, n_sums = len(short) + pick.choice([0, 30, 300]), sum(short) + pick.choice([0, 100, 10**4])
    items, firsts = torch.full((n_items, ITEM), -7), torch.full((len(rows), 2), -7, dtype=torch.int32)
    plan[(-(-n_items // 8),)](
        *(torch.tensor(rows), firsts, items, len(rows), n_items, n_sums, SHORT, PAGE_SIZE, SPLIT, FAN, 16, 8)
    )
    every = {unit: [item for row in rows for item in parts(row, unit)] for unit in UNITS}
    unit = next(u for u in UNITS if len(every[u]) <= n_items and sum(item[1] for item in every[u]) <= n_sums)
    places = [sum(item[1] for item in every[unit][:i]) for i in range(len(every[unit]))]
    found = [tuple(item) for item in items.tolist()]
    assert found[: len(places)] == [(*item, place) for item, place in zip(every[unit], places, strict=True)]
    assert all(item[1] == 0 for item in found[len(places) :])
    sums = [len(parts(row, unit)) * row[1] for row in rows]
    assert firsts.tolist() == [[sum(sums[:i]), unit] for i in range(len(rows))]
