"""What the tests of Python clients share: how they see that the server has aborted a request."""

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

PATIENCE = 60.0
"""Seconds until a test gives up: far more than anything takes, also on a busy machine."""


def n_aborted() -> float:
    """The number of requests that the server has aborted."""
    with urllib.request.urlopen(f"{os.environ['NORIA_URL']}/metrics", timeout=PATIENCE) as response:
        lines = response.read().decode().splitlines()
    counts = [line for line in lines if line.startswith("noria_requests_total{") and 'outcome="abort"' in line]
    assert counts
    return sum(float(line.rpartition(" ")[2]) for line in counts)


@pytest.fixture
def is_aborted() -> Callable[[], AbstractContextManager[None]]:
    """A context: in it a client starts a long answer and leaves it. It ends when the server has aborted the request."""

    @contextmanager
    def context() -> Iterator[None]:
        before = n_aborted()
        pace = Path(os.environ["PACE_OF_STEPS"])
        pace.touch()  # while it is there the server is slow: no answer ends before its client has left
        try:
            yield
            deadline = time.monotonic() + PATIENCE
            while n_aborted() == before:
                assert time.monotonic() < deadline, "the server never aborted the request"
                time.sleep(0.01)
        finally:
            pace.unlink()

    return context
