"""The start of the ranks of a host, by rank 0."""

import pytest

from model.errors import OptionError
from model.ranks import start
from tests.faults import offspring


def test_a_process_with_threads_forks_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them might hold a lock, which the rank would wait for."""
    monkeypatch.setattr(start, "n_threads", lambda: 3)
    before = offspring()
    with pytest.raises(OptionError, match="a process with 3 threads cannot fork ranks"):
        start.starter("2")
    assert offspring() == before
