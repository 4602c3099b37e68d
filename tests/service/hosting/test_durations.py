"""Durations: what they mean, and what is none."""

from typing import Any

import pytest

from service.hosting.durations import parse_duration

TEXTS = ("", " ", "-", "+", ".", "m", ".s", "+-1", "10x", "10 m", "1d", "m10", "10m!", "1e3", "\u0661s", "ten", "NaN")
"""They are no durations."""


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (5, 5.0),
        (2.5, 2.5),
        ("0", 0.0),
        ("90", 90.0),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("10s", 10.0),
        ("10m", 600.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("1h1m1s1ms", 3661.001),
        (" 10m ", 600.0),
        ("+5m", 300.0),
        (".5h", 1800.0),
        ("5.s", 5.0),
        ("100us", 1e-4),
        ("100\u00b5s", 1e-4),
        ("100\u03bcs", 1e-4),
        ("1.5ms20ns", 0.00150002),
    ],
)
def test_seconds(value: object, seconds: float) -> None:
    assert parse_duration(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [-1, -0.5, "-1", "-5m", "-1h30m"])
def test_a_negative_one_is_for_ever(value: object) -> None:
    assert parse_duration(value) is None


@pytest.mark.parametrize("value", [*TEXTS, True, False, None, [], {}])
def test_what_is_no_duration_is_named(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^must be seconds \(at most 1e\+10\), a text such as .* or -1 for ever, got "
    ) as raised:
        parse_duration(value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e11, 10**400, "9" * 400, "9" * 20 + "h"])
def test_the_longest_one_is_bounded(value: Any) -> None:
    with pytest.raises(ValueError, match="for ever, got "):
        parse_duration(value)
