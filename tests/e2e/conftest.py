"""The server that modules share: a start takes seconds of processor time."""

from collections.abc import Iterator

import pytest

from tests.e2e.server import LiveServer, serving


@pytest.fixture(scope="session")
def embedded() -> Iterator[LiveServer]:
    """`noria serve` with the embedded model and a spare engine. Each test leaves it ready and idle."""
    with serving("--max-sequences", "32", "--spare-engine", paced=True) as started:
        yield started
