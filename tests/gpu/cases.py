"""Sizes and combinations of the tests on a GPU: few where Triton's interpreter computes for a simulated one."""

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

from tests.crosses import covering
from tests.model.attention.attending import SIMULATED

IS_INTERPRETED = os.environ.get(SIMULATED) == "interpreted"
IS_IDLE = os.environ.get(SIMULATED) == "idle"
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
T = TypeVar("T")


def sized(device: T, interpreted: T) -> T:
    """The value for a device, or the one for an interpreter, which needs 10 ms a program."""
    return interpreted if IS_INTERPRETED else device


def combined(*factors: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of a value of each factor: all, or for an interpreter so many that each two values meet."""
    rows = list(itertools.product(*factors))
    return [rows[i] for i in covering(rows)] if IS_INTERPRETED else rows


def alternating(values: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, Any]]:
    """All pairs, or for an interpreter each of the first values with one of the others."""
    return sized([*itertools.product(values, others)], [*zip(values, itertools.cycle(others), strict=False)])
