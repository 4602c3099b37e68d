"""Fits the cost of a step to measured steps."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import median, quantiles
from typing import NamedTuple

import numpy as np

from model.batch import PoolSpec, StepBatch
from service.commands.simulate.costs import Line
from service.commands.simulate.replica import features

TURNS = 20
WORTH = 0.8
"""Two lines are used if they leave at most this part of the error of one."""


class Sample(NamedTuple):
    """A measured step: the counts that `Line.seconds` takes, and its seconds."""

    tokens: float
    sequences: float
    keys: float
    pairs: float
    seconds: float


def sample(batch: StepBatch, pools: Sequence[PoolSpec], seconds: float) -> Sample:
    return Sample(*features(batch, pools), seconds)


def typical(seconds: Sequence[float], quantile: float | None) -> float:
    """The mean, or a quantile."""
    return float(np.mean(seconds) if quantile is None else np.quantile(seconds, quantile))


def grouped(samples: Iterable[Sample], quantile: float | None) -> list[Sample]:
    """One sample for the steps of nearly the same shape, with their `typical` seconds."""
    groups: dict[tuple[float, ...], list[Sample]] = defaultdict(list)
    for item in samples:
        groups[item.tokens, item.sequences, round(item.pairs / (256 * item.sequences))].append(item)
    return [_joined(group, quantile) for group in groups.values()]


def _joined(group: list[Sample], quantile: float | None) -> Sample:
    tokens, sequences, keys, pairs, _ = map(median, zip(*group, strict=True))
    return Sample(tokens, sequences, keys, pairs, typical([item.seconds for item in group], quantile))


def least_squares(rows: np.ndarray, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The coefficients of at least 0 with the least errors in units of `scale`: the best of all choices of columns."""
    best, least = np.zeros(rows.shape[1]), np.inf
    scaled, wanted = rows / scale[:, None], values / scale
    for size in range(1, rows.shape[1] + 1):
        for columns in map(list, combinations(range(rows.shape[1]), size)):
            found, *_ = np.linalg.lstsq(scaled[:, columns], wanted, rcond=None)
            error = float(((scaled[:, columns] @ found - wanted) ** 2).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(rows.shape[1]), error
                best[columns] = found
    return best


def _arrays(samples: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(samples, dtype=float)
    return np.column_stack([np.ones(len(table)), table[:, :4]]), table[:, 4]


def _line(rows: np.ndarray, seconds: np.ndarray) -> Line:
    return Line(*map(float, least_squares(rows, seconds, seconds)))


def fit(samples: Sequence[Sample]) -> tuple[Line, ...]:
    """One line, or two of which the greater counts if that is much better.

    A small step is bound by reading weights, a large one by arithmetic. The samples are divided by the line that is
    greater for them, until that changes no more (Magnani and Boyd, Convex piecewise-linear fitting, 2008).
    """
    rows, seconds = _arrays(samples)
    one: tuple[Line, ...] = (_line(rows, seconds),)
    large = rows[:, 1] > np.median(rows[:, 1])
    two = one
    for _ in range(TURNS):
        if min(large.sum(), (~large).sum()) < rows.shape[1]:
            return one
        two = (_line(rows[~large], seconds[~large]), _line(rows[large], seconds[large]))
        before, large = large, rows @ np.array(two[1]) > rows @ np.array(two[0])
        if (before == large).all():
            break
    return two if np.mean(errors(two, samples)) < WORTH * np.mean(errors(one, samples)) else one


def errors(lines: Sequence[Line], samples: Sequence[Sample]) -> list[float]:
    """The relative errors of the predictions."""
    return [abs(max(line.seconds(*item[:4]) for line in lines) / item.seconds - 1) for item in samples]


def stated(lines: Sequence[Line], samples: Sequence[Sample]) -> dict[str, float]:
    found = errors(lines, samples)
    return {"groups": len(found), "median": round(median(found), 4), "p90": round(quantiles(found, n=10)[-1], 4)}
