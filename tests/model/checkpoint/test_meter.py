"""The words about a download, for those who wait."""

import time

import pytest

from model.checkpoint.meter import Meter


def test_every_ten_seconds_the_words_have_bytes_share_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reports: list[tuple[str, float]] = []
    meter = Meter(lambda stage, done: reports.append((stage, done)))
    meter.count(2**30, 5 * 2**30)  # a quarter of the rest is there: it is no part of the rate
    now[0] += 20.0
    meter.count(2 * 2**30, 5 * 2**30)
    now[0] += 9.0
    meter.count(3 * 2**30, 5 * 2**30)
    words = "downloading: 2.00 GiB of 5.00 GiB (40%), 51.20 MiB/s, 60 s left"
    assert reports == [("downloading", 0.2), (words, 0.4), (words, 0.6)]
    now[0] += 171.0
    meter.count(3 * 2**30, 5 * 2**30)
    assert reports[-1][0].endswith("(60%), 10.24 MiB/s, 3 min left")
