"""What the tests of agents share: the proxy before the server, and how a program is run behind it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.programs import Programs
from tests.agents.proxy import Record, recording
from tests.agents.records import keep


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Iterator[Record]:
    """A proxy before the server; its record is empty. At the end no client has looked for another host."""
    with recording(os.environ["NORIA_URL"]) as record:
        yield record
    keep(request.path.parent.name, request.node.name, record)
    assert not record.strangers


@pytest.fixture
def programs(record: Record, tmp_path: Path) -> Programs:
    """Runs the programs of the client's environment in an empty folder, with an empty home."""
    return Programs(record, tmp_path)
