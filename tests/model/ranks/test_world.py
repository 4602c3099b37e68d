"""Where a rank stands: torchrun's environment, and shares of a host."""

from dataclasses import replace

import pytest

from model.errors import OptionError
from model.ranks.world import World, check_size, from_environment

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_torchruns_variables() -> None:
    world = from_environment(TORCHRUN)
    assert world == World(3, 4, 1, 2, "node-a", 29500, agent=True)
    assert from_environment(world.variables) == world
    assert from_environment(replace(world, agent=False).variables) == replace(world, agent=False)
    assert from_environment({"WORLD_SIZE": "4"}) is None


def test_a_variable_that_is_no_number() -> None:
    with pytest.raises(OptionError, match="WORLD_SIZE must be a number, as torchrun sets it, got 'x'"):
        from_environment({**TORCHRUN, "WORLD_SIZE": "x"})


def test_torchrun_starts_as_many_processes_as_there_are_ranks() -> None:
    check_size(None, 2)
    check_size(from_environment(TORCHRUN), 4)
    with pytest.raises(OptionError, match=r"started 4 processes .* is 2: the two numbers must be equal"):
        check_size(from_environment(TORCHRUN), 2)


@pytest.mark.parametrize(
    ("n_local", "shares"),
    [(1, [{0, 2, 3, 7, 9}]), (2, [{0, 2}, {3, 7}]), (5, [{0}, {2}, {3}, {7}, {9}])],
)
def test_ranks_share_the_processors_of_a_host(n_local: int, shares: list[set[int]]) -> None:
    found = [World(rank, n_local, rank, n_local).processors({0, 2, 3, 7, 9}) for rank in range(n_local)]
    assert found == shares


def test_more_ranks_than_processors_take_turns() -> None:
    assert [World(rank, 5, rank, 5).processors({4, 6}) for rank in range(5)] == [{4}, {6}, {4}, {6}, {4}]
