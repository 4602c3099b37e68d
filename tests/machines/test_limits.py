"""Little memory and little processor time, in control groups of either version."""

import os

import pytest

from tests.drill.faults.limits import GROUPS, control_group, memory_limit
from tests.drill.row import NotPossible
from tests.machines.serving import ANSWER, SERVE, served

HALF_A_CORE = ("cpu.cfs_quota_us", "50000") if (GROUPS / "cpu").is_dir() else ("cpu.max", "50000 100000")


@pytest.mark.parametrize(
    ("controller", "limit"),
    [("memory", memory_limit(2**30)), ("cpu", HALF_A_CORE)],
    ids=["1 GiB of memory", "half a core"],
)
def test_it_serves_within(controller: str, limit: tuple[str, str]) -> None:
    try:
        with control_group(controller, limit, [os.getpid()]), served(SERVE) as server:  # its child is born in the group
            assert server.answer() == ANSWER
    except NotPossible as error:
        pytest.skip(str(error))
