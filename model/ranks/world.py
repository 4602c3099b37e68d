"""Where this process stands among the ranks: its numbers, the place where all meet, its share of the host. No torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from model.errors import OptionError

LOOPBACK = "127.0.0.1"
NAMES = {
    "rank": "RANK",
    "size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_size": "LOCAL_WORLD_SIZE",
    "host": "MASTER_ADDR",
    "port": "MASTER_PORT",
}
"""The variables of torchrun, by our names."""
AGENT = "TORCHELASTIC_USE_AGENT_STORE"


class Exit(IntEnum):
    """Exit codes of the process of a rank other than 0."""

    OVER = 0
    """The service has ended in good order."""
    REFUSED = 1
    """It cannot join."""
    LOST = 2
    """Rank 0 is gone, and may come again."""


@dataclass(frozen=True, slots=True)
class World:
    """One of `size` ranks. `local_rank` is its number among the `local_size` ranks of its host.

    All meet at a store of torch.distributed on rank 0's host, at this address. With `agent` it is torchrun's, which
    outlives an engine; else rank 0 opens it.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str = LOOPBACK
    port: int = 0
    agent: bool = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def processors(self, allowed: set[int]) -> set[int]:
        """Return its share of the processors that a process of this host may use. Ranks share them if they are too few.

        Worked example: of processors 0..4 the first of two ranks gets 0 and 1, the second 2 and 3.
        """
        numbers = sorted(allowed)
        each = len(numbers) // self.local_size
        if each == 0:
            return {numbers[self.local_rank % len(numbers)]}
        return set(numbers[self.local_rank * each : (self.local_rank + 1) * each])


def from_environment(variables: Mapping[str, str] = os.environ) -> World | None:
    """Read the world that torchrun describes; None if it did not start this process. Raises OptionError."""
    if "RANK" not in variables or "MASTER_ADDR" not in variables:
        _check_alone(variables)
        return None
    values = {name: variables.get(variable, "") for name, variable in NAMES.items()}
    for name, value in values.items():
        if name != "host" and not value.isdecimal():
            raise OptionError(f"{NAMES[name]} must be a number, as torchrun sets it, got {value!r}")
    host = values.pop("host")
    world = World(
        **{name: int(value) for name, value in values.items()}, host=host, agent=variables.get(AGENT) == "True"
    )
    for name, number, size in (("rank", world.rank, "size"), ("local_rank", world.local_rank, "local_size")):
        if number >= getattr(world, size):
            raise OptionError(f"{NAMES[name]} must be below {NAMES[size]} ({getattr(world, size)}), got {number}")
    return world


def _check_alone(variables: Mapping[str, str]) -> None:
    """Raise OptionError for a rank that does not know all of its group: it would start a second server."""
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    if given := [f"{name}={variables[name]}" for name, value in alone.items() if variables.get(name, value) != value]:
        missing = " and ".join(name for name in ("RANK", "MASTER_ADDR") if name not in variables)
        raise OptionError(
            f"{' and '.join(given)} without {missing} describes no group of ranks; start noria serve with torchrun, "
            "which sets all of these variables, or unset them"
        )


def check_size(world: World | None, n_ranks: int) -> None:
    """Raise OptionError if torchrun has started another number of processes than the layout has ranks."""
    if world is not None and world.size != n_ranks:
        raise OptionError(
            f"torchrun has started {world.size} processes (WORLD_SIZE), but --tensor-parallel-size times "
            f"--pipeline-parallel-size is {n_ranks}: the two numbers must be equal"
        )
