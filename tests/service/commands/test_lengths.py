"""Distributions of numbers of tokens against what their names mean."""

import random
import statistics

import pytest

from model.errors import OptionError
from service.commands.lengths import LONGEST, lengths


def test_drawn_numbers_have_the_distribution() -> None:
    rng = random.Random(1)
    assert {lengths("7", "--input").draw(rng) for _ in range(9)} == {7}
    assert {lengths("uniform:2-4", "--input").draw(rng) for _ in range(99)} == {2, 3, 4}
    drawn = [lengths("lognormal:200,0.5", "--input").draw(rng) for _ in range(4000)]
    assert statistics.median(drawn) == pytest.approx(200, rel=0.05)
    assert statistics.quantiles(drawn, n=100)[83] == pytest.approx(200 * 2.71828**0.5, rel=0.08)  # one sigma above


def test_a_wide_distribution_stays_finite() -> None:
    drawn = {lengths("lognormal:64,1000", "--input").draw(random.Random(seed)) for seed in range(9)}
    assert drawn == {1, LONGEST}


@pytest.mark.parametrize(
    "text",
    ["", "many", "0", "1.5", "uniform:5", "uniform:9-2", "uniform:1-16777217", "16777217", "lognormal:5", "normal:5,1"],
)
def test_a_distribution_that_is_none(text: str) -> None:
    with pytest.raises(OptionError, match="--output") as error:
        lengths(text, "--output")
    assert repr(text) in str(error.value)
