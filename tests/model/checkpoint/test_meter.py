"""The words about a download, for those who wait."""

import time

import pytest

from model.checkpoint.meter import Meter, metered
from tests.waiting import eventually

Reports = list[tuple[str, float]]


def test_the_words_have_bytes_share_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reports: Reports = []
    meter = Meter(lambda stage, done: reports.append((stage, done)))
    meter.tell()
    assert reports == []  # nothing is known yet
    meter.count(2**30, 5 * 2**30)  # a quarter of the rest is there: it is no part of the rate
    now[0] += 20.0
    meter.count(2 * 2**30, 5 * 2**30)
    meter.tell()
    words = "downloading: 2.00 GiB of 5.00 GiB (40%), 51.20 MiB/s, 60 s left"
    assert reports == [("downloading", 0.2), ("downloading", 0.4), (words, 0.4)]
    now[0] += 180.0
    meter.tell()
    assert reports[-1][0].endswith("(40%), 5.12 MiB/s, 10 min left")


def test_a_download_without_data_says_so() -> None:
    reports: Reports = []
    meter = Meter(lambda stage, done: reports.append((stage, done)))
    meter.count(0, 2**20)
    meter.tell()
    assert reports[-1] == ("downloading: 0 bytes of 1.00 MiB (0%), 0 bytes/s, no data arrives", 0.0)


def test_words_come_again_and_again_until_the_end() -> None:
    reports: Reports = []
    with metered(lambda stage, done: reports.append((stage, done)), seconds=0.001) as meter:
        meter.count(10, 1000)
        eventually(lambda: len(reports) > 5, "words without new data")
    assert reports[-1] == ("downloading", 1.0)
