from collections.abc import Iterator

import pytest

from tests.service.live import Live, running


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A server for all tests of a file; they leave it as they found it."""
    with running() as server:
        yield server
