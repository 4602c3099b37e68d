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
    assert from_environment(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}) == replace(world, agent=False)
    assert from_environment({}) is from_environment({"WORLD_SIZE": "1", "RANK": "0"}) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (TORCHRUN | {"WORLD_SIZE": "x"}, "WORLD_SIZE must be a number, as torchrun sets it, got 'x'"),
        (TORCHRUN | {"RANK": "\u00b2"}, "RANK must be a number"),
        (TORCHRUN | {"RANK": "5"}, r"RANK must be below WORLD_SIZE \(4\), got 5"),
        (TORCHRUN | {"LOCAL_RANK": "2"}, r"LOCAL_RANK must be below LOCAL_WORLD_SIZE \(2\), got 2"),
        # It would start a server of its own.
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 without RANK and MASTER_ADDR describes no group"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "RANK=1 and WORLD_SIZE=2 without MASTER_ADDR describes no group"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "WORLD_SIZE=2 without RANK describes no group"),
    ],
)
def test_a_rank_that_is_none_of_its_group_is_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        from_environment(variables)


def test_torchrun_starts_as_many_processes_as_there_are_ranks() -> None:
    check_size(None, 2)
    check_size(from_environment(TORCHRUN), 4)
    with pytest.raises(OptionError, match=r"started 4 processes .* is 2: the two numbers must be equal"):
        check_size(from_environment(TORCHRUN), 2)


@pytest.mark.parametrize(
    ("n_local", "allowed", "shares"),
    [
        (1, {0, 2, 3, 7, 9}, [{0, 2, 3, 7, 9}]),
        (2, {0, 2, 3, 7, 9}, [{0, 2}, {3, 7}]),
        (5, {4, 6}, [{4}, {6}, {4}, {6}, {4}]),
    ],
)
def test_ranks_share_the_processors_of_a_host(n_local: int, allowed: set[int], shares: list[set[int]]) -> None:
    assert [World(rank, n_local, rank, n_local).processors(allowed) for rank in range(n_local)] == shares
