"""The fit of costs: known costs are found again, and the counts of measured steps are those of the scheduler."""

import random

import pytest

from benchmarks.costs import fit, steps
from benchmarks.costs.fit import Sample
from model.options import STEP_LIMITS
from service.commands.simulate.costs import Line
from tests.fakes import FakeRunner, make_info

READING, ARITHMETIC = Line(step=5e-3, key=2e-8), Line(step=1e-3, token=1e-4, sequence=3e-5, pair=4e-9)


def grid(*lines: Line) -> list[Sample]:
    """Steps that decode, and chunks, as long as the greatest of the lines says."""
    shapes = [(n, n, n * keys, n * keys) for n in (1, 2, 4, 8, 16, 32, 64, 128) for keys in (64, 512, 2048)]
    shapes += [(n, 1, n + before, n * before + n * n / 2) for n in (8, 64, 256, 512, 2048) for before in (0, 900, 3000)]
    return [Sample(*shape, max(line.seconds(*shape) for line in lines)) for shape in shapes]


def test_a_line_is_found_again() -> None:
    assert fit.fit(grid(ARITHMETIC)) == (pytest.approx(ARITHMETIC, rel=1e-6),)


def test_two_lines_are_found_where_one_is_much_worse() -> None:
    samples = grid(READING, ARITHMETIC)
    found = fit.fit(samples)
    assert len(found) == 2
    assert max(fit.errors(found, samples)) < 0.05
    assert max(fit.errors(fit.fit(grid(ARITHMETIC)), samples)) > 0.5
    assert fit.stated(found, samples)["groups"] == len(samples)


def test_no_coefficient_is_negative() -> None:
    """Seconds that fall with the keys, which cannot be, give a cost of 0."""
    samples = [sample._replace(seconds=0.01 - 1e-9 * sample.keys) for sample in grid(ARITHMETIC)]
    [line] = fit.fit(samples)
    assert min(line) >= 0
    assert line.key == line.pair == 0


def test_equal_steps_are_one_sample() -> None:
    samples = [Sample(1, 1, 10, 10, seconds) for seconds in (1.0, 2.0, 6.0)]
    assert fit.grouped(samples, None) == [Sample(1, 1, 10, 10, 3.0)]
    assert fit.grouped(samples, 0.5) == [Sample(1, 1, 10, 10, 2.0)]
    assert len(fit.grouped([*samples, Sample(2, 2, 10, 10, 1.0)], None)) == 2


def test_the_counts_of_steps() -> None:
    """A prompt of 600 tokens in steps of 512 and 88, then a token a step."""
    runner = FakeRunner(make_info(page_size=16, pools=((None, 512),), max_model_len=1024, limits=STEP_LIMITS["cpu"]))
    found = steps.run(runner, 1, 600, random.Random(1))
    assert [sample[:4] for sample in found[:3]] == [
        (512, 1, 512, 512 * 513 / 2),
        (88, 1, 600, 600 * 601 / 2 - 512 * 513 / 2),
        (1, 1, 601, 601),
    ]
    assert len(found) >= steps.STEPS
    assert all(sample.seconds > 0 for sample in found)
